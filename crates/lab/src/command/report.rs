use std::path::Path;

use api::args::lab::ReportArgs;
use api::error::Result;
use api::output::Output;
use jiff::Timestamp;

use crate::report::{csv, html, svg, text, xlsx};
use crate::run::Record;

use super::{recorded, save};

pub(super) fn run(args: &ReportArgs, datastore: Option<&Path>, output: Output) -> Result<()> {
    let mut records: Vec<Record> = Vec::new();
    if let Some(vm) = &args.vm {
        let until = args.until.unwrap_or_else(Timestamp::now);
        records.push(recorded::record(vm, args.since, until, datastore)?);
    }
    for path in &args.runs {
        records.extend(save::read(path)?);
    }
    if let Some(path) = &args.output {
        save::file(path, html::page(&records).as_bytes())?;
    }
    if let Some(path) = &args.xlsx {
        save::file(path, &xlsx::workbook(&records)?)?;
    }
    if let Some(dir) = &args.csv {
        save::folder(dir)?;
        save::file(&dir.join("samples.csv"), csv::samples(&records)?.as_bytes())?;
        save::file(&dir.join("layers.csv"), csv::layers(&records)?.as_bytes())?;
        save::file(&dir.join("rows.csv"), csv::rows(&records)?.as_bytes())?;
    }
    if let Some(dir) = &args.svg {
        save::folder(dir)?;
        for (name, drawing) in svg::files(&records) {
            save::file(&dir.join(name), drawing.as_bytes())?;
        }
    }
    output.result(&records, |records| {
        let summaries: String = records.iter().map(|record| text::summary(record) + "\n").collect();
        summaries + &text::rows(records)
    })
}
