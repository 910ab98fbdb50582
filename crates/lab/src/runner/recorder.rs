use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::measure::{Span, measure, row};
use crate::probe::Heartbeat;
use crate::run::{
    Beat, End, FullScale, LayerHost, Mark, Phase, PhaseSpan, Quantity, Record, Row, Sample, Stun,
};

/// One line of a run's file: a record in the making, as JSON. The first line is the head, the last is the end. A file
/// without an end is that of a run that was broken off.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    /// The record with empty lists.
    Head {
        record: Box<Record>,
        heartbeat: Option<Heartbeat>,
    },
    Begin {
        phase: Phase,
        label: String,
        at_us: u64,
        counted_from_us: Option<u64>,
        loaded: bool,
    },
    Finish {
        at_us: u64,
    },
    Sample(Sample),
    /// Layer counts of the span under way, up to its end.
    Layers(Vec<LayerHost>),
    Stun(Stun),
    /// A heartbeat that was answered or lost. Beats of a modelled heartbeat are not written; they follow from the
    /// stuns.
    Beat(Beat),
    Mark(Mark),
    Row(Row),
    Note(String),
    End {
        at_us: u64,
        end: End,
    },
}

impl FullScale for Line {
    fn grow(&mut self, factor: u64) {
        match self {
            Line::Head { .. } | Line::Note(_) => {}
            Line::Begin { at_us, counted_from_us, .. } => {
                at_us.grow(factor);
                counted_from_us.iter_mut().for_each(|us| us.grow(factor));
            }
            Line::Finish { at_us } | Line::End { at_us, .. } => at_us.grow(factor),
            Line::Sample(sample) => sample.grow(factor),
            Line::Layers(layers) => layers.grow(factor),
            Line::Stun(stun) => stun.grow(factor),
            Line::Beat(beat) => beat.grow(factor),
            Line::Mark(mark) => mark.grow(factor),
            Line::Row(row) => row.grow(factor),
        }
    }
}

/// Builds a record, and keeps its current state on file at any time. Callers give the times of the simulation; the
/// record and the file have them at full scale.
pub struct Recorder {
    record: Record,
    heartbeat: Option<Heartbeat>,
    /// The span under way.
    span: Option<Span>,
    /// The latest time of all entries.
    latest_us: u64,
    file: Option<File>,
}

impl Recorder {
    /// Starts a record. `head` describes the run; its lists are filled from now on.
    pub fn new(head: Record, heartbeat: Option<Heartbeat>, path: Option<&Path>) -> io::Result<Recorder> {
        let file = path.map(File::create).transpose()?;
        let mut recorder = Recorder::empty(head, heartbeat);
        recorder.file = file;
        let record = Box::new(recorder.record.clone());
        recorder.write(&Line::Head { record, heartbeat });
        Ok(recorder)
    }

    fn empty(record: Record, heartbeat: Option<Heartbeat>) -> Recorder {
        Recorder { record, heartbeat, span: None, latest_us: 0, file: None }
    }

    /// Begins a span. Samples within its first `warm_up_us` do not count. None: no sample counts, for steps that are
    /// over at once.
    pub fn begin(&mut self, phase: Phase, label: &str, at_us: u64, warm_up_us: Option<u64>, loaded: bool) {
        let counted_from_us = warm_up_us.map(|us| at_us.saturating_add(us));
        self.add(Line::Begin { phase, label: label.to_string(), at_us, counted_from_us, loaded });
    }

    /// Ends the span and adds its figures as rows.
    pub fn finish(&mut self, at_us: u64) {
        self.add(Line::Finish { at_us });
    }

    pub fn sample(&mut self, sample: Sample) {
        self.add(Line::Sample(sample));
    }

    /// Adds layer counts to the span under way; does nothing without one.
    pub fn layers(&mut self, layers: Vec<LayerHost>) {
        if self.span.is_some() && !layers.is_empty() {
            self.add(Line::Layers(layers));
        }
    }

    pub fn stun(&mut self, stun: Stun) {
        self.add(Line::Stun(stun));
    }

    pub fn beat(&mut self, beat: Beat) {
        self.add(Line::Beat(beat));
    }

    pub fn mark(&mut self, at_us: u64, text: impl Into<String>) {
        self.add(Line::Mark(Mark { at_us, text: text.into() }));
    }

    pub fn is_in_span(&self) -> bool {
        self.span.is_some()
    }

    /// Adds a figure of the span under way.
    pub fn figure(&mut self, quantity: Quantity, value: f64, note: &str) {
        let span = &self.span.as_ref().expect("figures are those of a span").span;
        let row = row(&self.record, span, quantity, value, note);
        self.add(Line::Row(row));
    }

    pub fn note(&mut self, text: impl Into<String>) {
        self.add(Line::Note(text.into()));
    }

    pub fn end(mut self, at_us: u64, end: End) -> Record {
        self.add(Line::End { at_us, end });
        self.record
    }

    /// Returns a duration or a size of the simulation at full scale.
    pub fn at_full_scale(&self, mut value: u64) -> u64 {
        value.grow(self.record.scale());
        value
    }

    fn add(&mut self, mut line: Line) {
        line.grow(self.record.scale());
        self.write(&line);
        self.apply(line);
    }

    /// Writes a line. If the file cannot be written, the run continues and the record notes it.
    fn write(&mut self, line: &Line) {
        let Some(file) = &mut self.file else { return };
        let mut text = serde_json::to_vec(line).expect("a record is plain data");
        text.push(b'\n');
        if let Err(e) = file.write_all(&text) {
            self.file = None;
            self.record.notes.push(format!("the run's file is not complete: {e}"));
        }
    }

    fn apply(&mut self, line: Line) {
        match line {
            Line::Head { .. } => {}
            Line::Begin { phase, label, at_us, counted_from_us, loaded } => {
                self.seen(at_us);
                let counted_from_us = counted_from_us.unwrap_or(u64::MAX);
                let span = PhaseSpan { counted_from_us, ..PhaseSpan::new(phase, label, at_us, at_us) };
                self.span = Some(Span { span, loaded });
            }
            Line::Finish { at_us } => self.close_span(at_us),
            Line::Sample(sample) => {
                self.seen(sample.at_us + sample.interval_us);
                self.record.samples.push(sample);
            }
            Line::Layers(layers) => {
                if let Some(span) = &mut self.span {
                    span.span.layers = layers;
                }
            }
            Line::Stun(stun) => {
                self.seen(stun.at_us + stun.stun_us);
                self.record.stuns.push(stun);
            }
            Line::Beat(beat) => {
                self.seen(beat.at_us);
                self.record.beats.push(beat);
            }
            Line::Mark(mark) => {
                self.seen(mark.at_us);
                self.record.marks.push(mark);
            }
            Line::Row(row) => self.record.rows.push(row),
            Line::Note(text) => self.record.notes.push(text),
            Line::End { at_us, end } => {
                self.close_span(at_us);
                self.seen(at_us);
                self.record.beats = self.beats(self.latest_us).unwrap_or_default();
                self.record.end = end;
            }
        }
    }

    fn seen(&mut self, at_us: u64) {
        self.latest_us = self.latest_us.max(at_us);
    }

    /// Returns measured or modelled beats; None without pings.
    fn beats(&self, end_us: u64) -> Option<Vec<Beat>> {
        let measured = || (!self.record.beats.is_empty()).then(|| self.record.beats.clone());
        let modelled = self.heartbeat.map(|heartbeat| heartbeat.beats(end_us, &self.record.stuns));
        modelled.or_else(measured)
    }

    fn close_span(&mut self, at_us: u64) {
        let Some(mut span) = self.span.take() else { return };
        self.seen(at_us);
        span.span.end_us = at_us;
        span.span.counted_from_us = span.span.counted_from_us.min(at_us);
        let beats = self.beats(at_us);
        let rows = measure(&self.record, &span, beats.as_deref());
        self.record.rows.extend(rows);
        self.record.phases.push(span.span);
    }
}

/// Reads a run's file as a record. After a crash or an interruption the file counts up to its last whole line.
pub fn read(path: &Path) -> io::Result<Record> {
    let mut lines = BufReader::new(File::open(path)?).lines();
    let bad = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let first =
        lines.next().ok_or_else(|| bad("an empty file; a run's file begins with its head".into()))??;
    let mut recorder = match serde_json::from_str(&first) {
        Ok(Line::Head { record, heartbeat }) => Recorder::empty(*record, heartbeat),
        Ok(_) => return Err(bad("line 1: not the head that a run's file begins with".into())),
        Err(e) => return Err(bad(format!("line 1: {e}"))),
    };
    for (n, line) in lines.enumerate() {
        match line
            .map_err(|e| e.to_string())
            .and_then(|l| serde_json::from_str(&l).map_err(|e| e.to_string()))
        {
            Ok(line) => {
                let is_end = matches!(line, Line::End { .. });
                recorder.apply(line);
                if is_end {
                    return Ok(recorder.record);
                }
            }
            Err(e) => {
                recorder.note(format!(
                    "line {} of the run's file is not whole, the rest is left out: {e}",
                    n + 2
                ));
                break;
            }
        }
    }
    recorder.note("the run was broken off: this is what had been sampled");
    recorder.apply(Line::End { at_us: recorder.latest_us, end: End::Interrupted });
    Ok(recorder.record)
}
