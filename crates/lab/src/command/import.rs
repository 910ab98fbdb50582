use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use api::args::lab::ImportArgs;
use api::error::{Error, Result};
use api::output::Output;

use crate::import::{self, Imported, Merged, PhaseMark, Selection};
use crate::report::text;
use crate::run::Record;

use super::save;

pub(super) fn run(args: &ImportArgs, output: Output) -> Result<()> {
    let selection = Selection { vm: args.vm.clone(), disk: args.disk.clone(), counter: args.counter.clone() };
    let marks: Vec<PhaseMark> =
        args.phase.iter().map(|mark| PhaseMark::parse(mark)).collect::<blk::Result<_>>()?;
    let mut records: Vec<Record> = Vec::new();
    for (n, path) in args.files.iter().enumerate() {
        if args.files[..n].contains(path) {
            output.note(&format!("{}: given twice, read once", path.display()));
            continue;
        }
        let Imported { format, records: found, workload, skipped } = read(path, &selection)?;
        output.note(&format!("{}: {}, {} runs", path.display(), format.name(), found.len()));
        for skipped in skipped {
            output.note(&format!("  skipped: {skipped}"));
        }
        for worker in workload.iter().flat_map(|workload| &workload.workers) {
            output.note(&format!(
                "  worker {}: {} bytes, {} % reads",
                worker.name, worker.block_bytes, worker.read_percent
            ));
        }
        records.extend(found);
    }
    let Merged { mut records, messages } = import::merge(records);
    let unmarked = import::mark_phases(&mut records, &marks)?;
    import::find_phases(&mut records);
    messages.iter().chain(&unmarked).for_each(|message| output.note(message));
    save::keep(args.output.as_deref(), output, &records)?;
    output.result(&records, |records| records.iter().map(|record| text::summary(record) + "\n").collect())
}

fn read(path: &Path, selection: &Selection) -> Result<Imported> {
    let place = path.display().to_string();
    let file = File::open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::not_found(format!("{place}: no such file")),
        _ => Error::failed(format!("{place}: {e}")),
    })?;
    Ok(import::import(&place, &mut BufReader::new(file), selection)?)
}
