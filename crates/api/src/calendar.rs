//! Calendar expressions in the form of systemd.time(7), such as `Mon..Fri 22:00` or `*-*-01 03:30 Europe/Berlin`: when a
//! policy takes snapshots.
//!
//! An expression means what it means to systemd, except at the changes of the clock. A time that the clock skips stands for
//! the time that is as long after the change, so that no night is left out. An expression of every hour includes both of two
//! hours that have the same name.

use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Span, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::zone;

/// Maximum length of an expression in bytes; long ones are lists of days or times.
const TEXT_BYTES_MAX: usize = 200;
/// Last year of an expression, as in systemd.
const YEAR_MAX: u32 = 2199;
const YEAR_MIN: u32 = 1970;
/// Hours of the day as bits.
const EVERY_HOUR: u64 = (1 << 24) - 1;
/// Number of hours after a match that may have an earlier time: a clock goes back by at most two hours.
const HOURS_BESIDE: usize = 3;
/// Spans in which the last time is looked for, the shortest first: an expression with many times has one in a short span.
const SEARCHED_HOURS: [i64; 5] = [1, 24, 24 * 31, 24 * 366, 24 * 366 * 300];

/// Names for expressions, as in systemd.
const SHORTHANDS: [(&str, &str); 8] = [
    ("hourly", "*-*-* *:00:00"),
    ("daily", "*-*-* 00:00:00"),
    ("weekly", "Mon *-*-* 00:00:00"),
    ("monthly", "*-*-01 00:00:00"),
    ("quarterly", "*-01,04,07,10-01 00:00:00"),
    ("semiannually", "*-01,07-01 00:00:00"),
    ("yearly", "*-01-01 00:00:00"),
    ("annually", "*-01-01 00:00:00"),
];
const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// A calendar expression.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Calendar {
    text: String,
    days: Days,
    /// Bits of the hours and the minutes, and the second.
    hours: u64,
    minutes: u64,
    second: i8,
    /// The zone that the expression names; None: that of the host.
    zone: Option<TimeZone>,
}

#[derive(Debug, Clone, PartialEq)]
struct Days {
    /// Bit 0 is Monday.
    weekdays: u64,
    years: Vec<Part>,
    months: u64,
    /// Bit N is day N of the month; with `from_end`, day N before the end, of which 1 is the last.
    days: u64,
    from_end: bool,
}

/// Part of a field: `A`, `A..B`, `A/STEP` or `A..B/STEP`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Part {
    first: u32,
    last: u32,
    step: u32,
}

impl Part {
    fn has(self, value: u32) -> bool {
        (self.first..=self.last).contains(&value) && (value - self.first).is_multiple_of(self.step)
    }
}

impl Calendar {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the zone in which the expression is read.
    pub fn zone(&self) -> TimeZone {
        self.zone.clone().unwrap_or_else(TimeZone::system)
    }

    /// Returns the first time after `after`; None if there is none up to the year 2199.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let zone = self.zone();
        // A clock that went back may show times again that were passed before.
        let from = zone.to_datetime(after.checked_sub(SignedDuration::from_hours(3)).ok()?);
        let mut hours = self.hours_from(from);
        let mut found: Option<Timestamp> = None;
        let mut beside = HOURS_BESIDE;
        while beside > 0 {
            let Some((date, hour)) = hours.next() else { break };
            let times = self.times_of(&zone, date, hour).filter(|&time| time > after);
            found = times.chain(found).min();
            beside -= usize::from(found.is_some());
        }
        found
    }

    /// Returns the last time at or before `at` and after `after`.
    pub fn last_between(&self, after: Timestamp, at: Timestamp) -> Option<Timestamp> {
        for hours in SEARCHED_HOURS {
            let from =
                at.checked_sub(SignedDuration::from_hours(hours)).map_or(after, |from| from.max(after));
            let times = std::iter::successors(self.next(from), |&time| self.next(time));
            if let Some(last) = times.take_while(|&time| time <= at).last() {
                return Some(last);
            }
            if from == after {
                break;
            }
        }
        None
    }

    /// Returns the hours that the expression has from an hour on.
    fn hours_from(&self, from: DateTime) -> impl Iterator<Item = (Date, i8)> + '_ {
        let first = from.date();
        let days = self.days.from(first);
        days.flat_map(move |date| {
            let earliest = if date == first { from.hour() } else { 0 };
            (earliest..24).filter(|&hour| self.hours >> hour & 1 == 1).map(move |hour| (date, hour))
        })
    }

    /// Returns the times in one hour of the clock: none, one or two for each minute.
    fn times_of<'a>(
        &'a self,
        zone: &'a TimeZone,
        date: Date,
        hour: i8,
    ) -> impl Iterator<Item = Timestamp> + 'a {
        let minutes = (0..60).filter(|&minute| self.minutes >> minute & 1 == 1);
        minutes.flat_map(move |minute| {
            let time = Time::constant(hour, minute, self.second, 0);
            let ambiguous = zone.to_ambiguous_timestamp(DateTime::from_parts(date, time));
            let again = match ambiguous.offset() {
                AmbiguousOffset::Fold { .. } if self.hours == EVERY_HOUR => ambiguous.later().ok(),
                _ => None,
            };
            [ambiguous.compatible().ok(), again].into_iter().flatten()
        })
    }
}

impl Days {
    /// Returns the days from `first` on.
    fn from(&self, first: Date) -> impl Iterator<Item = Date> + '_ {
        let mut next = Some(first);
        std::iter::from_fn(move || {
            loop {
                let date = next?;
                let year = u32::try_from(date.year()).ok().filter(|&year| year <= YEAR_MAX)?;
                if !self.years.iter().any(|part| part.has(year)) {
                    next = date.first_of_year().checked_add(Span::new().years(1)).ok();
                } else if self.months >> date.month() & 1 == 0 {
                    next = date.first_of_month().checked_add(Span::new().months(1)).ok();
                } else {
                    next = date.tomorrow().ok();
                    if self.has_day(date) {
                        return Some(date);
                    }
                }
            }
        })
    }

    fn has_day(&self, date: Date) -> bool {
        let day = if self.from_end { date.days_in_month() - date.day() + 1 } else { date.day() };
        self.days >> day & 1 == 1 && self.weekdays >> date.weekday().to_monday_zero_offset() & 1 == 1
    }
}

impl FromStr for Calendar {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shown: String = text.chars().take(TEXT_BYTES_MAX).collect();
        parse(text).map_err(|cause| {
            format!(
                "{shown:?}: {cause}; examples are `daily`, `Mon..Fri 22:00` and `*-*-01 03:30 Europe/Berlin`"
            )
        })
    }
}

as_text!(Calendar);

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn parse(text: &str) -> Result<Calendar, String> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!("{} bytes, expected at most {TEXT_BYTES_MAX}", text.len()));
    }
    let mut words: Vec<&str> = text.split_whitespace().collect();
    let shorthand = words.first().and_then(|&word| {
        SHORTHANDS.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, meaning)| *meaning)
    });
    if let Some(meaning) = shorthand {
        words.splice(..1, meaning.split_whitespace());
    }
    let zone = match words.last() {
        Some(&word) if words.len() > 1 && is_zone(word) => {
            words.pop();
            Some(zone::parse(word)?)
        }
        _ => None,
    };
    let mut words = words.into_iter().peekable();
    let weekdays = words.next_if(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()));
    let date = words.next_if(|word| !word.contains(':'));
    let time = words.next();
    if let Some(rest) = words.next() {
        return Err(format!("found {rest:?} after the time, expected a time zone or nothing"));
    }
    if weekdays.is_none() && date.is_none() && time.is_none() {
        return Err("expected weekdays, a date or a time".to_owned());
    }
    let (hours, minutes, second) = parse_time(time.unwrap_or("00:00:00"))?;
    let weekdays = weekdays.map_or(Ok((1 << 7) - 1), parse_weekdays)?;
    let days = parse_date(weekdays, date.unwrap_or("*-*-*"))?;
    Ok(Calendar { text: text.to_owned(), days, hours, minutes, second, zone })
}

/// Returns whether a word is a time zone; no other part of an expression has these letters.
fn is_zone(word: &str) -> bool {
    let letters = word.starts_with(|c: char| c.is_ascii_alphabetic());
    letters && (word.contains('/') || word.eq_ignore_ascii_case("UTC") || parse_weekdays(word).is_err())
}

/// Returns weekdays as bits, the first of which is Monday.
pub(crate) fn parse_weekdays(text: &str) -> Result<u64, String> {
    let expected =
        || format!("weekdays {text:?}: expected names, lists and ranges, such as Mon..Fri or Sat,Sun");
    let day = |name: &str| {
        let name = name.to_ascii_lowercase();
        let at = WEEKDAYS.iter().position(|day| *day == name || name.len() == 3 && day.starts_with(&name));
        at.ok_or_else(expected)
    };
    let mut bits = 0;
    for part in text.trim_end_matches(',').split(',') {
        let (first, last) = match part.split_once("..").or_else(|| part.split_once('-')) {
            Some((first, last)) => (day(first)?, day(last)?),
            None => (day(part)?, day(part)?),
        };
        // A range may go over Sunday.
        let count = (last + 7 - first) % 7;
        (0..=count).for_each(|n| bits |= 1 << ((first + n) % 7));
    }
    Ok(bits)
}

fn parse_date(weekdays: u64, text: &str) -> Result<Days, String> {
    let (head, day, from_end) = match text.rsplit_once(['-', '~']) {
        Some((head, day)) => (head, day, text.as_bytes()[head.len()] == b'~'),
        None => {
            return Err(format!("date {text:?}: expected YEAR-MONTH-DAY or MONTH-DAY, each a number or *"));
        }
    };
    let (year, month) = head.rsplit_once('-').unwrap_or(("*", head));
    Ok(Days {
        weekdays,
        years: parse_field("year", year, YEAR_MIN, YEAR_MAX)?,
        months: bits(&parse_field("month", month, 1, 12)?),
        days: bits(&parse_field("day", day, 1, 31)?),
        from_end,
    })
}

fn parse_time(text: &str) -> Result<(u64, u64, i8), String> {
    let mut parts = text.split(':');
    let (Some(hour), Some(minute)) = (parts.next(), parts.next()) else {
        return Err(format!("time {text:?}: expected HOUR:MINUTE or HOUR:MINUTE:SECOND"));
    };
    let second = parts.next().unwrap_or("00");
    if let Some(rest) = parts.next() {
        return Err(format!("time {text:?}: found {rest:?} after the second"));
    }
    let second = second.parse::<i8>().ok().filter(|second| (0..60).contains(second));
    let second = second
        .ok_or_else(|| format!("time {text:?}: expected one second, 00 to 59; a minute has one at most"))?;
    let hours = bits(&parse_field("hour", hour, 0, 23)?);
    Ok((hours, bits(&parse_field("minute", minute, 0, 59)?), second))
}

fn parse_field(name: &str, text: &str, min: u32, max: u32) -> Result<Vec<Part>, String> {
    text.split(',').map(|part| parse_part(name, part, min, max)).collect()
}

fn parse_part(name: &str, text: &str, min: u32, max: u32) -> Result<Part, String> {
    let wrong = || {
        format!(
            "{name} {text:?}: expected *, a number from {min} to {max}, a range A..B, or one of them with /STEP"
        )
    };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|n| digits && (min..=max).contains(n)).ok_or_else(wrong)
    };
    let (range, step) = match text.split_once('/') {
        Some((range, step)) => {
            (range, step.parse().ok().filter(|&step| step > 0).map(Some).ok_or_else(wrong)?)
        }
        None => (text, None),
    };
    let (first, last) = match range.split_once("..") {
        Some((first, last)) => (number(first)?, number(last)?),
        None if range == "*" => (min, max),
        // A number with a step goes on up to the last one.
        None => (number(range)?, if step.is_some() { max } else { number(range)? }),
    };
    if first > last {
        return Err(wrong());
    }
    Ok(Part { first, last, step: step.unwrap_or(1) })
}

fn bits(parts: &[Part]) -> u64 {
    (0..64).filter(|&value| parts.iter().any(|part| part.has(value))).fold(0, |bits, value| bits | 1 << value)
}

#[cfg(test)]
mod tests;
