//! Parses figures and times in the formats of other machines' locales.

use jiff::civil::{Date, DateTime, Time};

/// Parses `1234.5`, `1234,5`, `1.234,5`, `1,234.5`. None for blanks and words, and for NaN and infinity.
pub(super) fn parse(text: &str) -> Option<f64> {
    let text = text.trim();
    if text.is_empty() || text.len() > 40 {
        return None;
    }
    let (dot, comma) = (text.rfind('.'), text.rfind(','));
    let plain = match (dot, comma) {
        (Some(dot), Some(comma)) if comma > dot => text.replace('.', "").replace(',', "."),
        (Some(_), Some(_)) => text.replace(',', ""),
        (None, Some(_)) => text.replace(',', "."),
        _ => text.to_owned(),
    };
    plain.parse().ok().filter(|value: &f64| value.is_finite())
}

/// Returns the number at the start of `text`, and the rest.
pub(super) fn digits(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

/// A civil time as microseconds, in both possible orders of month and day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ambiguous {
    pub month_first: Option<i64>,
    pub day_first: Option<i64>,
}

/// Parses `12/11/2012 19:09:23.000`, `12.11.2012 19:09:23`, `2012-12-11 19:09:23`, also with AM or PM.
pub(super) fn date_time(text: &str) -> Ambiguous {
    let nothing = Ambiguous { month_first: None, day_first: None };
    let Some((date, time)) = text.trim().split_once([' ', 'T']) else { return nothing };
    let Some(time) = time_of_day(time) else { return nothing };
    let Some((separator, [a, b, c])) = date_parts(date) else { return nothing };
    let at = |year: u64, month: u64, day: u64| {
        let date =
            Date::new(i16::try_from(year).ok()?, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()?;
        Some(micros(date.to_datetime(time)))
    };
    // ISO dates begin with the year; dates with dots begin with the day.
    match separator {
        _ if a > 31 => Ambiguous { month_first: at(a, b, c), day_first: at(a, b, c) },
        '.' => Ambiguous { month_first: None, day_first: at(c, b, a) },
        _ => Ambiguous { month_first: at(c, a, b), day_first: at(c, b, a) },
    }
}

fn date_parts(date: &str) -> Option<(char, [u64; 3])> {
    let separator = date.chars().find(|c| !c.is_ascii_digit()).filter(|c| "/.-".contains(*c))?;
    let mut parts = date.trim_end_matches(separator).split(separator).map(|part| part.parse().ok());
    let parts = [parts.next()??, parts.next()??, parts.next()??];
    Some((separator, parts))
}

/// Parses `19:09:23`, `19:09:23.123`, IOmeter's `19:09:23:123`, and `7:09:23 PM`.
pub(super) fn time_of_day(text: &str) -> Option<Time> {
    let (clock, half) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    let (hour, rest) = digits(clock)?;
    let (minute, rest) = digits(rest.strip_prefix(':')?)?;
    let (second, rest) = rest.strip_prefix(':').map_or(Some((0, "")), digits)?;
    let fraction = rest.trim_start_matches(['.', ':', ',']);
    let fraction: String =
        fraction.chars().take_while(char::is_ascii_digit).chain("000000000".chars()).take(9).collect();
    let hour = match (half.to_ascii_uppercase().as_str(), hour) {
        ("PM", 1..=11) => hour + 12,
        ("AM", 12) => 0,
        _ => hour,
    };
    let small = |n: u64| i8::try_from(n).ok();
    Time::new(small(hour)?, small(minute)?, small(second)?, fraction.parse().ok()?).ok()
}

fn micros(at: DateTime) -> i64 {
    at.to_zoned(jiff::tz::TimeZone::UTC).map_or(0, |zoned| zoned.timestamp().as_microsecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_locale() {
        let read =
            [("4000", 4000.0), ("0,25", 0.25), ("1.234,5", 1234.5), ("1,234.5", 1234.5), (" -1e3 ", -1000.0)];
        for (text, value) in read {
            assert_eq!(parse(text), Some(value), "{text}");
        }
        for text in ["", " ", "NaN", "inf", "four", "1e999", "1,2,3"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn dates_in_either_order() {
        let noon = 1_355_227_200_000_000;
        assert_eq!(
            date_time("2012-12-11 12:00:00"),
            Ambiguous { month_first: Some(noon), day_first: Some(noon) }
        );
        assert_eq!(date_time("12/11/2012 12:00:00.000").month_first, Some(noon));
        assert_eq!(date_time("11/12/2012 12:00:00 PM").day_first, Some(noon));
        assert_eq!(date_time("11.12.2012 12:00:00"), Ambiguous { month_first: None, day_first: Some(noon) });
        assert_eq!(date_time("23/07/2026 06:04:44").month_first, None);
        assert_eq!(date_time("2009-06-01 12:00:00:123").day_first.map(|us| us % 1_000_000), Some(123_000));
        for text in ["", "99/99/2012 00:00:00", "12/11/2012", "1/2/99999999 1:1:1", "12/11/2012 25:00:00"] {
            assert_eq!(date_time(text), Ambiguous { month_first: None, day_first: None }, "{text}");
        }
    }
}
