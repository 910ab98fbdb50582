//! `unstun thaw`: guests that a daemon left frozen when it ended. It needs no daemon.

use std::path::Path;
use std::time::Duration;

use api::error::{Error, Result};
use api::location::{Datastore, variable};
use api::output::Output;
use api::{GuestThawed, VmGuest};

use crate::cli::ThawArgs;
use crate::guest::{self, Freeze};

pub(super) fn run(named: Option<&Path>, args: &ThawArgs, output: Output) -> Result<()> {
    let named = named.map(Path::to_owned).or_else(variable);
    let datastore = Datastore::for_client(named.as_deref())?;
    let mut all = Vec::new();
    for record in guest::all_records(datastore.root()) {
        let (vm, access) = (record.vm.clone(), record.access.clone());
        let freeze = Freeze {
            record,
            datastore: datastore.root().to_owned(),
            guests_dir: args.guests_dir.clone(),
            frozen_max: Duration::from_millis(VmGuest::default().frozen_ms_max),
            busy: std::sync::Arc::default(),
        };
        let cause = guest::thaw_recorded(&freeze, Duration::from_secs(args.tries_s)).err();
        all.push(GuestThawed { vm, access, cause });
    }
    let failed = all.iter().filter(|guest| guest.cause.is_some()).count();
    output.result(&all, |all| describe(all))?;
    match failed {
        0 => Ok(()),
        n => Err(Error::failed(format!("{n} guests may be frozen"))),
    }
}

fn describe(all: &[GuestThawed]) -> String {
    if all.is_empty() {
        return "no guest was left frozen".to_owned();
    }
    let line = |guest: &GuestThawed| match &guest.cause {
        None => format!("VM {}: its file systems are thawed ({})", guest.vm, guest.access),
        Some(cause) => format!("VM {}: its file systems may be frozen: {cause}", guest.vm),
    };
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}
