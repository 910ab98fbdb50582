//! The live table. A terminal shows it redrawn in place; elsewhere each phase is printed once, when it has ended.

use std::fmt::Write as _;

use api::error::Result;
use api::output::{self, Output};
use api::units::format_us;

use crate::demo::report::Phase;

pub struct Screen {
    output: Output,
    in_place: bool,
    ended: Vec<Phase>,
    /// Number of lines of the last drawing, which the next one overwrites.
    drawn: usize,
}

impl Screen {
    pub fn new(output: Output) -> Self {
        Self {
            output,
            in_place: output::stdout_is_terminal() && !output.is_json(),
            ended: Vec::new(),
            drawn: 0,
        }
    }

    /// Shows the running phase, and a line about its progress.
    pub fn show(&mut self, running: &Phase, note: &str) -> Result<()> {
        if self.in_place { self.redraw(Some(running), note) } else { Ok(()) }
    }

    pub fn end(&mut self, phase: Phase) -> Result<()> {
        let line = row(&phase);
        self.ended.push(phase);
        match (self.output.is_json(), self.in_place) {
            (true, _) => Ok(()),
            (false, true) => self.redraw(None, ""),
            (false, false) if self.ended.len() == 1 => self.output.text(&format!("{}\n{line}", header())),
            (false, false) => self.output.text(&line),
        }
    }

    fn redraw(&mut self, running: Option<&Phase>, note: &str) -> Result<()> {
        let mut text = self.restart();
        let _ = writeln!(text, "\x1b[K{}", header());
        for phase in self.ended.iter().chain(running) {
            let _ = writeln!(text, "\x1b[K{}", row(phase));
        }
        // Clears the rest of the screen: the last drawing may have been longer.
        let _ = write!(text, "\x1b[J{note}");
        self.drawn = text.lines().count();
        self.output.text(&text)
    }

    /// Moves the cursor back to the first line of the last drawing.
    fn restart(&self) -> String {
        if self.drawn == 0 { String::new() } else { format!("\x1b[{}A", self.drawn) }
    }
}

fn header() -> String {
    format!(
        "{:<10}{:>6}{:>12}{:>12}{:>13}{:>12}{:>14}{:>12}",
        "phase", "s", "reads/s", "writes/s", "of baseline", "p99", "longest gap", "stun"
    )
}

fn row(phase: &Phase) -> String {
    let share = phase.of_baseline.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0));
    let stun = phase.stun_us.map_or("-".to_owned(), format_us);
    format!(
        "{:<10}{:>6.1}{:>12.0}{:>12.0}{share:>13}{:>12}{:>14}{stun:>12}",
        phase.name,
        phase.seconds,
        phase.reads_s,
        phase.writes_s,
        format_us(phase.p99_us),
        format_us(phase.longest_gap_us)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::meter::Counts;
    use crate::demo::report;

    #[test]
    fn rows_line_up_with_the_header() {
        let phase = Phase::new(report::BASELINE, 8.0, &Counts { reads: 400_000, ..Counts::default() }, None);
        assert_eq!(row(&phase).len(), header().len());
        assert!(row(&phase).starts_with("baseline     8.0       50000           0            -"));
    }
}
