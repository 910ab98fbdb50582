//! Each chart as an SVG file.

use super::chart;
use super::side_by_side::columns;
use super::words::{file_stem, label};
use crate::run::Record;

/// Returns names and texts of the files. The names have no folders and are safe on any file system; a number is added
/// to a repeated name.
pub fn files(records: &[Record]) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for group in super::comparisons(records) {
        let stem = file_stem(group.experiment);
        let all = columns(&group.records);
        let compared = [("phases", chart::bars(&all)), ("guest-iops", chart::overlay(&all))];
        for (name, drawing) in compared {
            files.extend(drawing.map(|d| (format!("{stem}-compared-{name}"), chart::standalone(&d))));
        }
        for record in &group.records {
            let stem = format!("{stem}-{}", file_stem(&label(record)));
            let charts = chart::all_of(record).into_iter();
            files.extend(charts.map(|(name, d)| (format!("{stem}-{name}"), chart::standalone(&d))));
        }
    }
    numbered(files)
}

fn numbered(files: Vec<(String, String)>) -> Vec<(String, String)> {
    let mut seen = std::collections::BTreeMap::<String, usize>::new();
    let name = |(name, text): (String, String)| {
        let count = seen.entry(name.to_ascii_lowercase()).or_default();
        *count += 1;
        (if *count == 1 { format!("{name}.svg") } else { format!("{name}-{count}.svg") }, text)
    };
    files.into_iter().map(name).collect()
}
