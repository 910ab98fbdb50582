use api::args::lab::ReportArgs;
use api::error::Result;
use api::output::Output;

use crate::report::{csv, html, svg, text, xlsx};
use crate::run::Record;

use super::save;

pub(super) fn run(args: &ReportArgs, output: Output) -> Result<()> {
    let mut records: Vec<Record> = Vec::new();
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
