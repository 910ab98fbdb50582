//! The order of a page: verdict, graph, published figures, and the rest folded.

use super::tests::{absurd, example};
use super::{html, svg, text};
use crate::run::*;

/// Returns the places of these texts on the page, which has each of them.
fn places<const N: usize>(page: &str, texts: [&str; N]) -> [usize; N] {
    texts.map(|text| page.find(text).unwrap_or_else(|| panic!("{text} is missing")))
}

#[test]
fn the_verdict_precedes_the_graph_and_the_graph_the_published_figures() {
    let page = html::page(&[example()]);
    let order = [
        "class=\"sentence\"",
        "guest I/O kept with a snapshot",
        "guest I/O kept while it is committed",
        ">longest stun<",
        "time of the commit",
        "Guest IOPS",
        "Published against predicted",
        "Host IOPS",
        "Phase by phase",
        "How to repeat it",
    ];
    let places = places(&page, order);
    assert!(places.is_sorted(), "{places:?}");
    assert!(page.contains("the longest stun was 400 ms."), "{page}");
    assert_eq!(page.matches("<h3>").count(), 2, "the published figures and the command: the rest is folded");
}

#[test]
fn figures_that_were_not_published_are_folded_and_open_on_paper() {
    let mut record = example();
    record.rows.push(Row::measured("zandboer-saturated", Phase::After, Quantity::MbPerS, 3.0));
    let page = html::page(&[record]);
    let [shown, folded, figure] =
        places(&page, ["Published against predicted", "<details class=\"checks\">", "guest MiB/s"]);
    assert!(shown < folded && folded < figure, "{shown}, {folded}, {figure}");
    assert_eq!(page.matches("guest MiB/s").count(), 1);
    assert!(page.contains("details:not(.bulk)::details-content { content-visibility: visible;"));
}

#[test]
fn every_stun_is_in_a_label_of_the_graph() {
    let mut record = example();
    let stun = |at_s: u64, ms: u64| Stun {
        at_us: at_s * 1_000_000,
        stun_us: ms * 1000,
        disk: None,
        cause: String::new(),
    };
    record.stuns = vec![stun(100, 843), stun(500, 1_224), stun(501, 25), stun(502, 31), stun(900, 7)];
    let (_, graph) = svg::files(&[record]).remove(0);
    for label in ["stun 843 ms", "3 stuns, longest 1.22 s, together 1.28 s", "stun 7 ms"] {
        assert!(graph.contains(&format!(">{label}<")), "{label}: {graph}");
    }
    assert_eq!(graph.matches("class=\"stun-label\"").count(), 3);
    assert_eq!(svg::files(&[absurd()]).remove(0).1.matches("NaN").count(), 0);
}

#[test]
fn a_comparison_begins_with_a_line_for_each_subject() {
    let named =
        |subject: &str| Record { subject: subject.into(), hypothesis: None, rows: Vec::new(), ..example() };
    let records = ["native", "redo", "native again", "native", "redo", "native again"].map(named);
    let page = html::page(&records);
    let order =
        ["<table class=\"verdicts\">", "class=\"sentence\"", "Guest IOPS by phase", "native, round 2"];
    let order = places(&page, order);
    assert!(order.is_sorted(), "{order:?}");
    let (table, _) = page.split_once("<table class=\"verdicts\">").unwrap().1.split_once("</table>").unwrap();
    for row in ["native", "redo <", "native again", "noise"] {
        assert!(
            table.contains(&format!("<th scope=\"row\">{}", row.trim_end_matches(" <"))),
            "{row}: {table}"
        );
    }
    assert_eq!(table.matches("<tr>").count(), 5, "head, three subjects, noise");
    assert!(table.contains("0 %") && table.contains(" ~"), "equal runs have no noise: {table}");
    assert!(page.contains("2 rounds: the range holds the median in 50 of 100 cases."));
}

#[test]
fn a_measurement_without_phases_has_no_cost_and_says_so() {
    let imported = Record { phases: Vec::new(), rows: Vec::new(), ..example() };
    let page = html::page(&[imported]);
    assert!(page.contains("no marked phases") && page.contains("heartbeats lost"), "{page}");
    assert!(page.contains("4 of 1000"), "lost beats");
}

#[test]
fn what_was_scaled_is_said_at_the_verdict() {
    let mut simulated = Record { time_scale: 64, ..example() };
    simulated.notes.push("Scaled: sizes by 64.".into());
    let page = html::page(&[simulated]);
    assert_eq!(page.matches("class=\"scaling\"").count(), 1);
    let real = Record { notes: vec!["Scaled: the protocol's 980 s to 3 s.".into()], ..example() };
    let page = html::page(std::slice::from_ref(&real));
    let [said, graph] = places(&page, ["<p class=\"scaling\">Scaled: the protocol", "Guest IOPS"]);
    assert!(said < graph);
    assert!(text::summary(&real).contains("Scaled: the protocol"));
}

#[test]
fn a_run_that_failed_has_the_verdict_of_what_was_sampled() {
    let failed = Record { end: End::Failed("the disks hang".into()), ..example() };
    let page = html::page(std::slice::from_ref(&failed));
    assert!(page.contains("<dd>28 %</dd>") && page.contains("the disks hang"), "{page}");
    // Beside a complete run of the same subject it is not counted, which the page says.
    let page = html::page(&[example(), failed]);
    assert!(page.contains("a run is not counted, because it did not end by itself: the disks hang"));
}
