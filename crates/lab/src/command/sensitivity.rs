use api::args::lab::SensitivityArgs;
use api::error::Result;
use api::output::Output;

use crate::experiment::Experiment;
use crate::report::figure_name;
use crate::run::Use;
use crate::sensitivity::{self, FOLLOWS, Figure, INDEPENDENT, Matrix};

use super::reproduce::wanted;

/// Elasticities below this are not printed; `--json` has all of them.
const SHOWN: f64 = 0.05;

/// Returns 1 if an experiment counts a figure that is implied.
pub(super) fn run(args: &SensitivityArgs, output: Output) -> Result<u8> {
    let mut experiments = wanted(&args.experiments)?;
    if args.experiments.is_empty() {
        experiments.retain(has_figure);
    }
    let matrices: Vec<Matrix> = super::with_bar(|observer| {
        experiments
            .iter()
            .map(|one| sensitivity::matrix(one, args.seed, observer))
            .collect::<blk::Result<_>>()
    })??;
    output.result(&matrices, |matrices| text(matrices))?;
    Ok(u8::from(matrices.iter().flat_map(|matrix| &matrix.figures).any(Figure::is_wrong)))
}

fn has_figure(experiment: &Experiment) -> bool {
    let counted = |r#use| matches!(r#use, Use::Predict | Use::Implied);
    experiment.published.iter().any(|cell| cell.value.is_some() && counted(cell.r#use))
}

fn text(matrices: &[Matrix]) -> String {
    let mut text = String::new();
    for Matrix { experiment, hypothesis, changes, figures } in matrices {
        text += &format!("{experiment}, {hypothesis}: {} changes\n", changes.len());
        for figure in figures.iter().filter(|figure| figure.published.is_some()) {
            let names = changes.iter().map(|change| change.constant.as_str());
            text += &line(figure, names);
        }
        text.push('\n');
    }
    text += &format!(
        "Each number is an elasticity: the percent by which a prediction grows if the constant does by one. A figure is \
         implied\nif the times of the whole storage move it by less than {INDEPENDENT}, or one constant that no baseline \
         fixes by {FOLLOWS} and more. \"!\" is an implied figure that is counted.\n"
    );
    text
}

fn line<'a>(figure: &Figure, names: impl Iterator<Item = &'a str>) -> String {
    let number = |e: Option<f64>| e.map_or("-".to_owned(), |e| format!("{e:+.2}"));
    let mut parts: Vec<(f64, String)> = figure
        .elasticities
        .iter()
        .zip(names)
        .filter_map(|(e, name)| e.filter(|e| e.abs() >= SHOWN).map(|e| (e.abs(), format!("{name} {e:+.2}"))))
        .collect();
    parts.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let parts: Vec<String> = parts.into_iter().map(|(_, part)| part).collect();
    let implied = figure.implied.as_ref().map(|why| format!(" implied: {why};")).unwrap_or_default();
    let mark = if figure.is_wrong() { "!" } else { " " };
    let name = figure_name(figure.phase, figure.quantity, figure.stun);
    format!("{mark} {name}:{implied} storage {}; {}\n", number(figure.storage), parts.join(", "))
}
