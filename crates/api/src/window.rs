//! Windows of time that repeat, such as `Mon..Fri 22:00-06:00`: when commits may run.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::Time;
use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{calendar, zone};

const TEXT_BYTES_MAX: usize = 100;

/// A window: days, a time of the day at which it begins, and one at which it ends, which may be on the next day.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Window {
    text: String,
    /// Days on which the window begins; bit 0 is Monday.
    weekdays: u64,
    begin: Time,
    end: Time,
    zone: Option<TimeZone>,
}

impl Window {
    pub fn contains(&self, at: Timestamp) -> bool {
        let zone = self.zone.clone().unwrap_or_else(TimeZone::system);
        let now = zone.to_datetime(at);
        let begins_on =
            |date: jiff::civil::Date| self.weekdays >> date.weekday().to_monday_zero_offset() & 1 == 1;
        let (time, today) = (now.time(), begins_on(now.date()));
        if self.begin < self.end {
            return today && (self.begin..self.end).contains(&time);
        }
        let yesterday = now.date().yesterday().is_ok_and(begins_on);
        today && time >= self.begin || yesterday && time < self.end
    }
}

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shown: String = text.chars().take(TEXT_BYTES_MAX).collect();
        let expected = "expected days, HH:MM-HH:MM and a time zone, of which only the times are needed, such as Mon..Fri 22:00-06:00";
        parse(text).map_err(|cause| format!("window {shown:?}: {cause}; {expected}"))
    }
}

fn parse(text: &str) -> Result<Window, String> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!("{} bytes, expected at most {TEXT_BYTES_MAX}", text.len()));
    }
    let mut words = text.split_whitespace().peekable();
    let days = words.next_if(|word| !word.contains(':'));
    let times = words.next().and_then(|word| word.split_once('-')).ok_or("no times")?;
    let (begin, end) = (time(times.0)?, time(times.1)?);
    let zone = words.next().map(zone::parse).transpose()?;
    if let Some(rest) = words.next() {
        return Err(format!("found {rest:?} after the time zone"));
    }
    let weekdays = days.map_or(Ok((1 << 7) - 1), calendar::parse_weekdays)?;
    Ok(Window { text: text.to_owned(), weekdays, begin, end, zone })
}

fn time(text: &str) -> Result<Time, String> {
    let wrong = || format!("time {text:?} is not HH:MM");
    let (hour, minute) = text.split_once(':').ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<i8>().map_err(|_| wrong());
    Time::new(number(hour)?, number(minute)?, 0, 0).map_err(|_| wrong())
}

as_text!(Window);

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_may_go_over_midnight() {
        let contains =
            |window: &str, at: &str| window.parse::<Window>().unwrap().contains(at.parse().unwrap());
        // 2026-11-27 is a Friday.
        for (window, at, expected) in [
            ("22:00-06:00 UTC", "2026-11-27T23:00:00Z", true),
            ("22:00-06:00 UTC", "2026-11-27T06:00:00Z", false),
            ("Fri 22:00-06:00 UTC", "2026-11-28T05:59:59Z", true),
            ("Fri 22:00-06:00 UTC", "2026-11-27T05:00:00Z", false),
            ("Mon..Fri 01:00-05:00 UTC", "2026-11-28T02:00:00Z", false),
            ("Mon..Fri 01:00-05:00 UTC", "2026-11-27T01:00:00Z", true),
            ("01:00-05:00 Asia/Tokyo", "2026-11-27T17:00:00Z", true),
            ("00:00-00:00 UTC", "2026-11-27T17:00:00Z", true),
        ] {
            assert_eq!(contains(window, at), expected, "{window} {at}");
        }
    }

    #[test]
    fn what_is_no_window_is_refused() {
        for text in ["", "22:00", "Mon 22:00-24:00", "Foo 01:00-02:00", "1-2", "01:00-02:00 UTC x"] {
            let error = text.parse::<Window>().unwrap_err();
            assert!(error.contains("HH:MM-HH:MM"), "{text}: {error}");
        }
    }
}
