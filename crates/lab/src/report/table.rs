//! Published beside predicted figures: one line per figure, one column per record.

use std::collections::BTreeMap;

use super::words;
use crate::run::{Bound, Phase, Quantity, Record, Row, Use};

/// Tolerance of a prediction as a share, the aim of the lab. Two careful readers of one graph differ by half of it.
pub(super) const WITHIN: f64 = 0.25;

/// All records of one experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison<'a> {
    pub experiment: &'a str,
    pub records: Vec<&'a Record>,
    pub lines: Vec<Line<'a>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Line<'a> {
    /// Experiment of the row; it differs from the record's in files of many jobs.
    pub experiment: &'a str,
    pub phase: Phase,
    pub quantity: Quantity,
    pub published: Option<f64>,
    pub bound: Option<Bound>,
    pub r#use: Use,
    /// Notes of all records' rows, each of them once.
    pub notes: Vec<&'a str>,
    /// One cell per record, in the order of the records.
    pub cells: Vec<Cell>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cell {
    pub predicted: Option<f64>,
    pub band: Option<(f64, f64)>,
    /// Relative error: 0.1 is 10 % too high. None without a published or predicted figure.
    pub error: Option<f64>,
    /// Whether the prediction is close enough to the published figure; false for a figure that the run did not reach.
    pub within: Option<bool>,
    /// Whether the record models what was published; another stack may differ from it, and should.
    pub judged: bool,
}

/// Subject on which nearly all published rows were measured; the rows of others are marked as those of the default column.
const PUBLISHED_SUBJECT: &str = "esx";

impl Cell {
    fn new(record: &Record, row: &Row) -> Self {
        let judged = record.subject == PUBLISHED_SUBJECT || row.default;
        let both = row.published.zip(row.predicted).filter(|(p, q)| p.is_finite() && q.is_finite());
        Self {
            predicted: row.predicted,
            band: row.band,
            error: both.and_then(|(published, predicted)| error(published, predicted)),
            within: row
                .published
                .filter(|published| judged && published.is_finite())
                .map(|_| both.is_some_and(|(published, predicted)| within(row, published, predicted))),
            judged,
        }
    }
}

fn error(published: f64, predicted: f64) -> Option<f64> {
    if published == predicted {
        return Some(0.0);
    }
    (published != 0.0).then(|| (predicted - published) / published)
}

/// Returns whether the row's prediction keeps what was published, exactly or as a bound.
pub fn is_kept(row: &Row) -> bool {
    let both = row.published.zip(row.predicted).filter(|(p, q)| p.is_finite() && q.is_finite());
    both.is_some_and(|(published, predicted)| match row.bound {
        None => predicted == published,
        Some(_) => within(row, published, predicted),
    })
}

/// Returns whether the prediction is close enough. Counts of pings and yes or no have to be exact, because a tolerance
/// of pings where 0 or 1 was published is met by chance. A bound has to be kept.
fn within(row: &Row, published: f64, predicted: f64) -> bool {
    let allowed = match row.quantity {
        Quantity::Converged | Quantity::PingsLost => 0.0,
        _ => WITHIN * published.abs(),
    };
    match row.bound {
        Some(Bound::AtMost) => predicted <= published,
        Some(Bound::AtLeast) => predicted >= published,
        None => (predicted - published).abs() <= allowed,
    }
}

/// Key of a row. Rows of one experiment may repeat, such as a stun for each of twelve disks; the number tells them
/// apart.
type Key<'a> = (&'a str, Phase, Quantity, usize);

fn keyed(record: &Record) -> Vec<(Key<'_>, &Row)> {
    let mut seen: BTreeMap<(&str, Phase, Quantity), usize> = BTreeMap::new();
    let key = |row| -> (Key<'_>, &Row) {
        let Row { experiment, phase, quantity, .. }: &Row = row;
        let count = seen.entry((experiment, *phase, *quantity)).or_default();
        *count += 1;
        ((experiment.as_str(), *phase, *quantity, *count), row)
    };
    record.rows.iter().map(key).collect()
}

/// Groups records by experiment, in the order of each experiment's first record.
pub fn comparisons(records: &[Record]) -> Vec<Comparison<'_>> {
    let mut groups: Vec<Comparison<'_>> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for record in records {
        let place = *places.entry(&record.experiment).or_insert_with(|| {
            groups.push(Comparison {
                experiment: &record.experiment,
                records: Vec::new(),
                lines: Vec::new(),
            });
            groups.len() - 1
        });
        groups[place].records.push(record);
    }
    for group in &mut groups {
        group.lines = lines(&group.records);
    }
    groups
}

fn lines<'a>(records: &[&'a Record]) -> Vec<Line<'a>> {
    let mut lines: Vec<Line<'a>> = Vec::new();
    let mut places: BTreeMap<Key<'a>, usize> = BTreeMap::new();
    for (column, record) in records.iter().enumerate() {
        for (key, row) in keyed(record) {
            let place = *places.entry(key).or_insert_with(|| {
                lines.push(Line::new(row, records.len()));
                lines.len() - 1
            });
            lines[place].put(column, record, row);
        }
    }
    lines.sort_by_key(|line| line.phase);
    lines
}

/// Returns a line for each of these rows of one record.
pub(super) fn lines_of_rows<'a>(record: &Record, rows: &[&'a Row]) -> Vec<Line<'a>> {
    let line = |row: &&'a Row| {
        let mut line = Line::new(row, 1);
        line.put(0, record, row);
        line
    };
    rows.iter().map(line).collect()
}

impl<'a> Line<'a> {
    fn new(row: &'a Row, columns: usize) -> Self {
        Self {
            experiment: &row.experiment,
            phase: row.phase,
            quantity: row.quantity,
            published: None,
            bound: row.bound,
            r#use: row.r#use,
            notes: Vec::new(),
            cells: vec![Cell::default(); columns],
        }
    }

    fn put(&mut self, column: usize, record: &Record, row: &'a Row) {
        self.cells[column] = Cell::new(record, row);
        self.published = self.published.or(row.published);
        if !row.note.is_empty() && !self.notes.contains(&row.note.as_str()) {
            self.notes.push(&row.note);
        }
    }

    /// Returns the published figure with its unit, and what it bounds; "-" where there is none.
    pub fn published_text(&self) -> String {
        let bound = match self.bound {
            Some(Bound::AtMost) => "at most ",
            Some(Bound::AtLeast) => "at least ",
            None => "",
        };
        self.published
            .map_or_else(|| "-".into(), |value| format!("{bound}{}", words::value(self.quantity, value)))
    }

    /// Returns whether the record's figure is counted as right or wrong.
    pub fn counted(&self, cell: &Cell) -> Option<bool> {
        cell.within.filter(|_| self.r#use == Use::Predict)
    }

    /// Returns the quantity's name, with the experiment where it differs from the group's.
    pub fn name(&self, group: &str) -> String {
        let name = words::quantity(self.quantity);
        if self.experiment == group { name.into() } else { format!("{name}, {}", self.experiment) }
    }
}

impl Comparison<'_> {
    /// Returns, for the figures that the mechanism has to produce: how many are within the tolerance, and how many
    /// there are.
    pub fn score(&self, column: usize) -> (usize, usize) {
        let counted = self.lines.iter().filter_map(|line| line.counted(&line.cells[column]));
        let within: Vec<bool> = counted.collect();
        (within.iter().filter(|within| **within).count(), within.len())
    }

    /// Returns the same for the figures that are implied.
    pub fn implied_score(&self, column: usize) -> (usize, usize) {
        let implied = self.lines.iter().filter(|line| line.r#use == Use::Implied);
        let within: Vec<bool> = implied.filter_map(|line| line.cells[column].within).collect();
        (within.iter().filter(|within| **within).count(), within.len())
    }

    pub fn has_published(&self) -> bool {
        self.lines.iter().any(|line| line.published.is_some())
    }

    /// Returns the column of the frozen hypothesis; the first one where there is none.
    pub fn default_column(&self) -> usize {
        self.records.iter().position(|r| r.rows.iter().any(|row| row.default)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Clock;

    fn score(rows: &[(Quantity, f64, Option<f64>, Option<Bound>)]) -> (usize, usize) {
        let row = |&(quantity, published, predicted, bound)| Row {
            published: Some(published),
            predicted,
            bound,
            r#use: Use::Predict,
            ..Row::measured("x", Phase::Commit, quantity, 0.0)
        };
        let rows = rows.iter().map(row).collect();
        let record = Record { rows, ..Record::head("x", PUBLISHED_SUBJECT, "", Clock::Virtual, 1) };
        comparisons(&[record])[0].score(0)
    }

    #[test]
    fn counts_are_exact_bounds_are_kept_and_what_was_not_reached_is_missed() {
        let pings = |published, predicted| score(&[(Quantity::PingsLost, published, Some(predicted), None)]);
        assert_eq!([pings(0.0, 0.0), pings(0.0, 1.0), pings(16.0, 15.0)], [(1, 1), (0, 1), (0, 1)]);
        let most = |predicted| score(&[(Quantity::StunUs, 4.0, Some(predicted), Some(Bound::AtMost))]);
        assert_eq!([most(4.0), most(4.1)], [(1, 1), (0, 1)]);
        let least = |predicted| score(&[(Quantity::StunUs, 4.0, Some(predicted), Some(Bound::AtLeast))]);
        assert_eq!([least(400.0), least(3.9)], [(1, 1), (0, 1)]);
        assert_eq!(score(&[(Quantity::Seconds, 300.0, None, None)]), (0, 1));
    }
}
