//! The lab's page in a browser: its charts are drawn, and it fits. A test of the page's text checks that it loads
//! nothing.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::daemon::Datastore;
use crate::programs::tool;

/// Minimum number of charts: guest and host IOPS, latencies of reads and writes, which are the curves of one run.
const CHARTS_MIN: u64 = 4;
/// Widths in CSS pixels: a telephone and a window.
const WIDTHS: [u64; 2] = [400, 1200];

/// Shows the page in a frame of that width, and reports the result in its own title.
const PROBE: &str = r#"<!doctype html><iframe id="page" width="WIDTH" height="900" style="border:0" src="report.html"></iframe>
<script>page.onload = () => {
  const root = page.contentDocument.documentElement;
  const drawn = [...root.querySelectorAll("figure svg")].filter(chart => {
    const curves = [...chart.querySelectorAll("path, polyline")].map(curve => curve.getBoundingClientRect());
    return curves.some(box => box.width > WIDTH / 3 && box.height > 5);
  });
  const wide = [...root.querySelectorAll("body *")].filter(e => !e.closest(".scroll") && !e.closest("svg")
    && e.getBoundingClientRect().right > root.clientWidth);
  document.title = JSON.stringify({ drawn: drawn.length, wide: wide.map(e => e.outerHTML.slice(0, 90)) });
};</script>
"#;

/// Runs the default experiment, and returns the folder with its page.
fn run(datastore: &Datastore) -> std::path::PathBuf {
    let folder = datastore.beside("run");
    let mut unstun = Command::new(env!("CARGO_BIN_EXE_unstun"));
    let made = unstun.args(["lab", "run", "zandboer-saturated", "--output"]).arg(&folder).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    folder
}

/// Runs the browser without a sandbox, because tests run as root, for which it has none.
fn chromium(folder: &Path, arguments: &[&str], page: &str) -> String {
    let profile = format!("--user-data-dir={}", folder.join("profile").display());
    let page = format!("file://{}", folder.join(page).display());
    let fixed = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", &profile];
    let all: Vec<&str> = fixed.iter().copied().chain(arguments.iter().copied()).chain([&*page]).collect();
    tool("chromium", &all)
}

/// Returns the measurements of the page in a frame of that width.
fn probe(folder: &Path, width: u64) -> Value {
    fs::write(folder.join("probe.html"), PROBE.replace("WIDTH", &width.to_string())).unwrap();
    let options = ["--allow-file-access-from-files", "--virtual-time-budget=20000", "--dump-dom"];
    let dom = chromium(folder, &options, "probe.html");
    let said = dom.split_once("<title>").and_then(|(_, rest)| rest.split_once("</title>"));
    let (said, _) = said.unwrap_or_else(|| panic!("the page never loaded: {dom}"));
    serde_json::from_str(&said.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")).unwrap()
}

/// Returns the share of pixels that do not have the most frequent colour, in percent.
fn inked_percent(folder: &Path) -> f64 {
    let picture = folder.join("page.png");
    let shot = format!("--screenshot={}", picture.display());
    chromium(folder, &[&shot, "--window-size=1200,2400"], "report.html");
    let mut reader = png::Decoder::new(BufReader::new(File::open(&picture).unwrap())).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut bytes).unwrap();
    let pixel_bytes = frame.color_type.samples();
    let mut colours = HashMap::<&[u8], u64>::new();
    bytes[..frame.buffer_size()].chunks_exact(pixel_bytes).for_each(|p| *colours.entry(p).or_default() += 1);
    let (all, most) = (colours.values().sum::<u64>(), colours.values().max().copied().unwrap_or_default());
    100.0 - 100.0 * most as f64 / all as f64
}

#[test]
fn the_page_of_a_run_draws_its_charts_and_fits_any_width() {
    let datastore = Datastore::new();
    let folder = run(&datastore);
    for width in WIDTHS {
        let said = probe(&folder, width);
        assert!(said["drawn"].as_u64().unwrap() >= CHARTS_MIN, "{width}: {said}");
        assert_eq!(said["wide"], serde_json::json!([]), "at {width} these reach beyond the edge");
    }
    let inked = inked_percent(&folder);
    assert!((3.0..70.0).contains(&inked), "{inked} % of the picture");
    // The same checks detect a faulty page.
    let page = folder.join("report.html");
    let whole = fs::read_to_string(&page).unwrap();
    fs::write(&page, whole.replace("<path", "<desc").replace("<polyline", "<desc").replace(" d=\"", " e=\""))
        .unwrap();
    assert_eq!(probe(&folder, WIDTHS[1])["drawn"], 0);
    fs::write(&page, "<!doctype html><p style='width: 3000px'>").unwrap();
    assert_eq!(probe(&folder, WIDTHS[1])["wide"].as_array().unwrap().len(), 1);
    assert!(inked_percent(&folder) < 1.0);
}
