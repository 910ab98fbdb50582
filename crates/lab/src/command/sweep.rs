use api::args::lab::{SubjectArg, SweepArgs};
use api::error::{Error, ErrorKind, Result};
use api::output::{self, Output};
use api::units::format_us;

use crate::reproduce::in_parallel;
use crate::runner::RunObserver;
use crate::sweep::{self, Found, Point, Way};
use crate::vmware::spec::Version;

pub(super) fn run(args: &SweepArgs, output: Output) -> Result<()> {
    let esx = release(args)?;
    let stack = super::stack(args.subject, args.hypothesis.as_deref(), esx.hypothesis())?;
    let way = Way { esx, filled: args.filled };
    let storage = super::storage(&args.storage)?;
    let ends = |range: &std::ops::RangeInclusive<u32>| (*range.start(), *range.end());
    let points = sweep::grid(ends(&args.read), ends(&args.depth), &args.layers);
    let found = super::with_bar(|observer| {
        let name = |n: usize| describe(&points[n]);
        in_parallel(points.len(), name, observer, |n| {
            sweep::measure(
                points[n],
                way,
                stack,
                &storage,
                args.seed,
                RunObserver::until(observer.interrupted),
            )
        })
    })?;
    let is_whole = found.iter().all(Option::is_some);
    let found: Vec<Found> = found.into_iter().flatten().collect();
    output.result(&found, |found| table(found))?;
    match is_whole {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Cancelled, "interrupted; what was found is shown")),
    }
}

/// Returns the release whose rules the sweep follows. Only the model of VMware has one.
fn release(args: &SweepArgs) -> Result<Version> {
    match (args.subject, &args.esx) {
        (_, None) => Ok(Version::Esx55),
        (SubjectArg::Esx, Some(release)) => release.parse().map_err(Error::invalid),
        (_, Some(_)) => Err(Error::invalid("--esx is a release of VMware: it needs --subject esx")),
    }
}

fn describe(point: &Point) -> String {
    format!("{} % reads, depth {}, {} layers", point.read_percent, point.outstanding, point.layers)
}

fn table(found: &[Found]) -> String {
    let mut table = output::table(&[
        "layers",
        "depth",
        "reads %",
        "before",
        "with layers",
        "share",
        "host I/Os",
        "latency",
    ]);
    for Found { point, baseline_iops, iops, share, host_ios, latency_us, .. } in found {
        let number = |value: &Option<f64>, digits| value.map_or("-".to_string(), |v| format!("{v:.digits$}"));
        table.add_row([
            point.layers.to_string(),
            point.outstanding.to_string(),
            point.read_percent.to_string(),
            number(baseline_iops, 0),
            number(iops, 0),
            number(share, 2),
            number(host_ios, 2),
            latency_us.map_or("-".to_string(), |us| format_us(us as u64)),
        ]);
    }
    output::align_right(&mut table, &[0, 1, 2, 3, 4, 5, 6, 7]);
    let failed = found.iter().filter_map(|found| Some((found, found.failure.as_ref()?)));
    let failures = failed.map(|(found, why)| format!("\n{}: {why}", describe(&found.point)));
    std::iter::once(table.to_string()).chain(failures).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SweepArgs,
    }

    #[test]
    fn only_the_model_of_vmware_has_a_release() {
        let found = |line: &str| release(&Line::parse_from(line.split(' ')).args);
        assert_eq!(found("sweep --subject esx --esx 7.0").unwrap(), Version::Esx70);
        assert_eq!(found("sweep").unwrap(), Version::Esx55);
        let refused = found("sweep --esx 7.0").unwrap_err();
        assert!(refused.message.contains("--subject esx"), "{refused}");
    }
}
