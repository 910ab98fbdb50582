//! Tests of calendar expressions: by hand, beside `systemd-analyze`, and at the changes of the clock.

use std::io::Write;
use std::process::Command;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Returns the next times after `from`.
fn times(expression: &str, from: &str, count: usize) -> Vec<String> {
    let calendar: Calendar = expression.parse().unwrap_or_else(|e| panic!("{e}"));
    let next = std::iter::successors(calendar.next(at(from)), |&time| calendar.next(time));
    next.take(count).map(|time| time.to_string()).collect()
}

#[test]
fn expressions_have_the_times_that_systemd_gives_them() {
    for (expression, expected) in [
        ("daily UTC", ["2026-11-27T00:00:00Z", "2026-11-28T00:00:00Z"]),
        ("Mon..Fri 22:00 UTC", ["2026-11-26T22:00:00Z", "2026-11-27T22:00:00Z"]),
        ("Fri-Mon 22:00 UTC", ["2026-11-27T22:00:00Z", "2026-11-28T22:00:00Z"]),
        ("sat,Sunday 01:30:15 UTC", ["2026-11-28T01:30:15Z", "2026-11-29T01:30:15Z"]),
        ("*-*-01 03:30 UTC", ["2026-12-01T03:30:00Z", "2027-01-01T03:30:00Z"]),
        ("*-02~01 12:00 UTC", ["2027-02-28T12:00:00Z", "2028-02-29T12:00:00Z"]),
        ("*-02-29 UTC", ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]),
        ("*:0/15 UTC", ["2026-11-26T12:15:00Z", "2026-11-26T12:30:00Z"]),
        ("8..18/5:30 UTC", ["2026-11-26T13:30:00Z", "2026-11-26T18:30:00Z"]),
        ("quarterly UTC", ["2027-01-01T00:00:00Z", "2027-04-01T00:00:00Z"]),
        ("2030-01-01 UTC", ["2030-01-01T00:00:00Z", ""]),
        ("03:00 America/New_York", ["2026-11-27T08:00:00Z", "2026-11-28T08:00:00Z"]),
    ] {
        let expected: Vec<_> = expected.into_iter().filter(|time| !time.is_empty()).collect();
        assert_eq!(times(expression, "2026-11-26T12:00:00Z", 2), expected, "{expression}");
    }
}

#[test]
fn a_night_whose_time_the_clock_skips_is_not_left_out() {
    let expected = ["2026-03-28T01:30:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"];
    assert_eq!(times("02:30 Europe/Berlin", "2026-03-27T12:00:00Z", 3), expected);
    // The skipped hour and the one after it are the same.
    let expected = ["2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"];
    assert_eq!(times("hourly Europe/Berlin", "2026-03-28T23:00:00Z", 3), expected);
}

#[test]
fn a_time_that_the_clock_shows_twice_comes_once_and_every_hour_twice() {
    let expected = ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"];
    assert_eq!(times("02:30 Europe/Berlin", "2026-10-24T12:00:00Z", 2), expected);
    let expected = ["2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"];
    assert_eq!(times("hourly Europe/Berlin", "2026-10-24T23:30:00Z", 3), expected);
    let expected = ["2026-10-25T00:40:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:20:00Z"];
    assert_eq!(times("*:0/20 Europe/Berlin", "2026-10-25T00:20:00Z", 3), expected);
}

#[test]
fn the_last_time_of_a_span_is_found() {
    let last = |expression: &str, after: &str, until: &str| {
        let calendar: Calendar = expression.parse().unwrap();
        calendar.last_between(at(after), at(until)).map(|time| time.to_string())
    };
    let (january, now) = ("2026-01-01T00:00:00Z", "2026-11-26T12:34:56Z");
    assert_eq!(last("*:* UTC", january, now).unwrap(), "2026-11-26T12:34:00Z");
    assert_eq!(last("daily UTC", january, now).unwrap(), "2026-11-26T00:00:00Z");
    assert_eq!(last("yearly UTC", "2019-01-01T00:00:00Z", now).unwrap(), january);
    assert_eq!(last("daily UTC", "2026-11-26T00:00:00Z", now), None);
    assert_eq!(last("*-02-29 UTC", "1980-01-01T00:00:00Z", now).unwrap(), "2024-02-29T00:00:00Z");
}

#[test]
fn what_is_no_expression_is_refused_with_the_field() {
    for (text, expected) in [
        ("", "expected weekdays, a date or a time"),
        ("Europe/Berlin", "weekdays"),
        ("Mon..Foo 10:00", "weekdays \"Mon..Foo\""),
        ("25:00", "hour \"25\": expected *, a number from 0 to 23"),
        ("10:60", "minute \"60\""),
        ("10:00:*", "one second"),
        ("10", "date \"10\": expected YEAR-MONTH-DAY"),
        ("*-13-01", "month \"13\""),
        ("*-*-5..2", "day \"5..2\""),
        ("*:0/0", "minute \"0/0\""),
        ("10:00 Mars/Olympus", "time zone \"Mars/Olympus\" is not known"),
        ("10:00 11:00", "found \"11:00\" after the time"),
        ("26-01-01", "year \"26\": expected *, a number from 1970 to 2199"),
        (&"1".repeat(300), "300 bytes, expected at most 200"),
    ] {
        let error = text.parse::<Calendar>().unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(error.contains("examples are"), "{error}");
    }
}

/// Returns the next times in UTC that systemd gives an expression; None where `systemd-analyze` is not installed.
fn systemd(expression: &str, from: &str, count: usize) -> Option<Vec<String>> {
    let mut command = Command::new("systemd-analyze");
    command.env("TZ", "UTC").env("LC_ALL", "C").arg("calendar").arg(format!("--iterations={count}"));
    let output = command.arg(format!("--base-time={from}")).arg(expression).output().ok()?;
    assert!(output.status.success(), "{expression}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_time =
        |line: &&str| ["Next elapse", "Iter. #"].iter().any(|head| line.trim_start().starts_with(head));
    let times = text.lines().filter(is_time).map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [.., date, time, zone] = words[..] else { panic!("{line}") };
        assert_eq!(zone, "UTC", "{line}");
        format!("{date}T{time}Z")
    });
    Some(times.collect())
}

#[test]
fn systemd_gives_the_same_times() {
    let expressions = [
        "*-*-* 00/6:05",
        "Mon *-*-1..7 04:00",
        "*-1/3-15 12:34:56",
        "Wed..Sat,Tue *-*-* 1,13:00",
        "*-*~01 23:59",
        "*-*~1..3 06:00",
        "Fri *-*-13 13:13",
        "2027..2030/2-06..08-* 00:00",
        "*:7/11",
        "Mon..Thu,Sun 11,5:30:20",
        "semiannually",
        "weekly",
    ];
    for from in ["2026-11-26 12:00:00", "2028-02-28 23:59:59", "2026-12-31 23:59:30"] {
        for expression in expressions {
            let Some(expected) = systemd(expression, from, 8) else {
                let mut out = std::io::stdout();
                let _ = writeln!(out, "SKIPPED calendar: systemd-analyze is not installed");
                return;
            };
            let start = format!("{}Z", from.replace(' ', "T"));
            assert_eq!(
                times(&format!("{expression} UTC"), &start, expected.len()),
                expected,
                "{expression} {from}"
            );
        }
    }
}
