use api::args::lab::DevicesArgs;
use api::error::{Error, ErrorKind, Result};
use api::output::{self, Output};

use crate::devices::{self, BLOCKS, Broken, Checked, DEPTHS, Point};
use crate::reproduce::in_parallel;
use crate::storage::{self, StorageModel};

/// Returns the exit code: that of a failure if a model breaks a bound.
pub(super) fn run(args: &DevicesArgs, output: Output) -> Result<u8> {
    let names = match args.models.is_empty() {
        true => storage::names().map(str::to_string).collect(),
        false => args.models.clone(),
    };
    let models: Vec<StorageModel> = names.iter().map(|name| super::storage(name)).collect::<Result<_>>()?;
    let Some(all) = check(&models, args.seed)? else {
        return Err(Error::new(ErrorKind::Cancelled, "interrupted; no model is checked in part"));
    };
    output.result(&all, |all| text(all))?;
    Ok(exit_code(&all))
}

/// Checks all models on all cores. None if the user interrupted.
fn check(models: &[StorageModel], seed: u64) -> Result<Option<Vec<Checked>>> {
    let devices: Vec<_> = models.iter().map(|model| model.storage().units[0].model.clone()).collect();
    let jobs: Vec<_> = devices
        .iter()
        .enumerate()
        .flat_map(|(model, device)| devices::series(device).into_iter().map(move |series| (model, series)))
        .collect();
    let found = super::with_bar(|observer| {
        let name = |n: usize| models[jobs[n].0].name.clone();
        in_parallel(jobs.len(), name, observer, |n| {
            let (model, series) = &jobs[n];
            devices::points(&devices[*model], series, |load| devices[*model].measure(load, seed))
        })
    })?;
    let Some(found): Option<Vec<_>> = found.into_iter().collect() else { return Ok(None) };
    let mut of_models: Vec<Vec<Vec<Point>>> = vec![Vec::new(); models.len()];
    for ((model, _), points) in jobs.iter().zip(found) {
        of_models[*model].push(points);
    }
    Ok(Some(models.iter().zip(of_models).map(|(model, points)| devices::checked(model, points)).collect()))
}

fn exit_code(all: &[Checked]) -> u8 {
    match all.iter().any(|checked| !checked.broken.is_empty()) {
        true => ErrorKind::Failed.exit_code(),
        false => 0,
    }
}

fn text(all: &[Checked]) -> String {
    let mut text = String::new();
    for checked in all {
        text += &format!("{}: {}\n", checked.model, checked.title);
        for constant in &checked.constants {
            let crate::run::Constant { name, value, unit, note, .. } = constant;
            text += &format!("  {name} {value} {unit} ({note})\n");
        }
        text += &table(&checked.points);
        text.push('\n');
    }
    text += LEGEND;
    for checked in all {
        checked.broken.iter().for_each(|broken| text += &line(&checked.model, broken));
    }
    let broken: usize = all.iter().map(|checked| checked.broken.len()).sum();
    text + &format!("{} models checked, {broken} bounds broken\n", all.len())
}

const LEGEND: &str = "Columns are requests under way. Cells are requests a second as found / the upper bound from \
first principles; the last column is what bounds the deepest load.\n";

fn table(points: &[Point]) -> String {
    let depths = DEPTHS.map(|depth| depth.to_string());
    let mut header = vec!["load"];
    header.extend(depths.iter().map(String::as_str));
    header.push("bound by");
    let mut table = output::table(&header);
    let same =
        |a: &Point, b: &Point| (a.pattern, a.region, a.block_bytes) == (b.pattern, b.region, b.block_bytes);
    for series in points.chunk_by(same) {
        let mut row = vec![load(series[0].pattern.text(), series[0].region, series[0].block_bytes)];
        for depth in DEPTHS {
            let cell = series.iter().find(|point| point.depth == depth);
            row.push(cell.map_or("-".into(), |point| format!("{:.0}/{:.0}", point.iops, point.bound_iops)));
        }
        row.push(series.last().map_or("", |point| point.bound_by).into());
        table.add_row(row);
    }
    output::align_right(&mut table, &[1, 2, 3, 4, 5, 6]);
    table.to_string() + "\n"
}

fn load(pattern: &str, region: &str, block_bytes: u64) -> String {
    let size = match block_bytes {
        bytes if bytes == BLOCKS[2] => "1M".to_string(),
        bytes => format!("{}K", bytes / 1024),
    };
    let region = if region.is_empty() { String::new() } else { format!(", {region}") };
    format!("{pattern} {size}{region}")
}

fn line(model: &str, broken: &Broken) -> String {
    let Broken { pattern, region, block_bytes, depth, found_iops, bound_iops, what } = broken;
    let load = load(pattern.text(), region, *block_bytes);
    format!("{model}: {load}, {depth} under way: found {found_iops:.0} IOPS, bound {bound_iops:.0}: {what}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::Rate;

    /// A planted device, 10 times as fast as its disks allow.
    #[test]
    fn a_broken_bound_is_printed_and_fails() {
        let pair = StorageModel::named("sas-10k-pair").unwrap();
        let device = pair.storage().units[0].model.clone();
        let planted = Rate { per_s: 2000.0, mean_ns: 5e5 };
        let series = devices::series(&device).into_iter().take(1);
        let points = series.map(|series| devices::points(&device, &series, |_| planted)).collect();
        let all = [devices::checked(&pair, points)];
        let text = text(&all);
        let told = "sas-10k-pair: random reads 4K, 1 under way: found 2000 IOPS, bound ";
        assert!(text.contains(told) && text.contains("above the bound by heads"), "{text}");
        assert_eq!(exit_code(&all), 1);
    }
}
