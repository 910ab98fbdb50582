//! Time zones by name.

use jiff::tz::TimeZone;

/// Returns the zone of a name such as `UTC` or `Europe/Berlin`.
pub(crate) fn parse(name: &str) -> Result<TimeZone, String> {
    if name.eq_ignore_ascii_case("UTC") {
        return Ok(TimeZone::UTC);
    }
    TimeZone::get(name).map_err(|_| {
        format!("time zone {name:?} is not known here: expected UTC or a name such as Europe/Berlin; the package tzdata has them")
    })
}
