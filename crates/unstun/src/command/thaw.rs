//! `unstun thaw`: guests that a daemon left frozen when it ended. It needs no daemon.

use std::path::Path;
use std::time::Duration;

use api::GuestThawed;
use api::error::{Error, Result};
use api::location::{Datastore, variable};
use api::output::Output;

use crate::cli::ThawArgs;
use crate::guest::{self, HeldGuest};

pub(super) fn run(named: Option<&Path>, args: &ThawArgs, output: Output) -> Result<()> {
    let named = named.map(Path::to_owned).or_else(variable);
    let datastore = Datastore::for_client(named.as_deref())?;
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
