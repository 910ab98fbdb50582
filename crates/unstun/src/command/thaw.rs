//! `unstun thaw`: guests that a daemon left frozen when it ended. It needs no daemon.

use std::path::Path;
use std::time::Duration;

use api::GuestThawed;
use api::error::{Error, Result};
use api::location::{Datastore, variable};
use api::name::VmName;
use api::output::Output;

use crate::cli::ThawArgs;
use crate::guest::{self, HeldGuest};

pub(super) fn run(named: Option<&Path>, args: &ThawArgs, output: Output) -> Result<()> {
    let named = named.map(Path::to_owned).or_else(variable);
    let datastore = Datastore::for_client(named.as_deref())?;
    if let Some(vm) = &args.forget {
        return forget(&datastore, vm, output);
    }
    let mut all = Vec::new();
    for record in guest::all_records(datastore.root()) {
        let (vm, access) = (record.vm.clone(), String::from(record.held.clone()));
        let (datastore, guests_dir) = (datastore.root().to_owned(), args.guests_dir.clone());
        let guest = HeldGuest { record, datastore, guests_dir };
        let cause = guest::thaw_recorded(&guest, args.tries_s.map(Duration::from_secs)).err();
        all.push(GuestThawed { vm, access, cause });
    }
    let failed = all.iter().filter(|guest| guest.cause.is_some()).count();
    output.result(&all, |all| describe(all))?;
    match failed {
        0 => Ok(()),
        n => Err(Error::failed(format!("{n} guests may be frozen or stand still"))),
    }
}

/// Removes the record of a guest that runs, as the user knows.
fn forget(datastore: &Datastore, vm: &VmName, output: Output) -> Result<()> {
    let mut recorded = guest::all_records(datastore.root()).into_iter();
    let Some(record) = recorded.find(|record| record.vm == *vm) else {
        return Err(Error::not_found(format!(
            "no guest of a VM {vm} is on record as frozen or standing still"
        )));
    };
    guest::forget(datastore.root(), vm)
        .map_err(|e| Error::failed(format!("removing the record of the guest of VM {vm}: {e}")))?;
    let forgotten = [GuestThawed { vm: vm.clone(), access: String::from(record.held), cause: None }];
    output.result(&forgotten, |_| format!("the record of VM {vm} is removed; its guest was not touched"))
}

fn describe(all: &[GuestThawed]) -> String {
    if all.is_empty() {
        return "no guest was left frozen or standing still".to_owned();
    }
    let line = |guest: &GuestThawed| match &guest.cause {
        None => format!("VM {} goes on ({})", guest.vm, guest.access),
        Some(cause) => format!("VM {} may be frozen or stand still: {cause}", guest.vm),
    };
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}
