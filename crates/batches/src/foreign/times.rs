//! Parses times as other systems write them.

use model::Timestamp;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::{Rfc2822, Rfc3339};

use super::notes::NoteKind;

/// Fields that may hold the time of a message.
pub(super) const TIMES: [&str; 5] = ["created_at", "createdAt", "create_time", "created", "timestamp"];

/// The time in the first of the usual fields that has one.
pub(super) fn time_of(map: &Map<String, Value>) -> Option<Timestamp> {
    TIMES.iter().filter_map(|key| map.get(*key)).find_map(read)
}

/// The time from the first of these fields that has one. Also stores in `extra` the fields that do
/// not hold this time.
pub(super) fn take_time(
    map: &Map<String, Value>,
    extra: &mut Map<String, Value>,
    notes: &mut Vec<NoteKind>,
) -> Option<Timestamp> {
    let mut time = None;
    let is_said = |value: &&Value| !value.is_null() && value.as_str() != Some("");
    for key in TIMES {
        let Some(value) = map.get(key).filter(is_said) else { continue };
        let at = read(value);
        if at.is_some() && time.is_none_or(|time| Some(time) == at) {
            time = at;
            continue;
        }
        extra.insert(key.to_owned(), value.clone());
        if at.is_none() {
            notes.push(NoteKind::UnknownTime { field: key });
        }
    }
    time
}

/// Accepts seconds, milliseconds or finer units, also as text, and RFC 3339 with common variants,
/// and RFC
/// 2822. Without an offset the time is UTC.
fn read(value: &Value) -> Option<Timestamp> {
    let Some(text) = value.as_str().map(str::trim) else { return of_number(value.as_f64()?) };
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return of_number(text.parse().ok()?);
    }
    let parsed = OffsetDateTime::parse(&rfc3339(text).unwrap_or_default(), &Rfc3339)
        .or_else(|_| OffsetDateTime::parse(text, &Rfc2822))
        .ok()?;
    Some(Timestamp((parsed.unix_timestamp_nanos() / 1_000_000) as i64))
}

fn of_number(number: f64) -> Option<Timestamp> {
    if !number.is_finite() || number <= 0.0 {
        return None;
    }
    // The size of the number shows its unit: seconds reach 1e11 in the year 5138, and milliseconds
    // did in
    // 1973. Finer units differ in the same way.
    let ms = match number {
        _ if number < 1e11 => number * 1_000.0,
        _ if number < 1e14 => number,
        _ if number < 1e17 => number / 1e3,
        _ => number / 1e6,
    };
    Some(Timestamp(ms as i64))
}

/// A date, perhaps with a time and an offset, converted to RFC 3339.
fn rfc3339(text: &str) -> Option<String> {
    let text = text.to_ascii_uppercase().replace(',', ".");
    let (date, rest) = text.split_at_checked(10)?;
    let rest = rest.trim_start_matches(['T', ' ']);
    let (time, offset) = rest.split_at(rest.find(['Z', '+', '-', ' ']).unwrap_or(rest.len()));
    let time = match time.len() {
        0 => "00:00:00".to_owned(),
        5 => format!("{time}:00"),
        _ => time.to_owned(),
    };
    let offset = offset.trim();
    let offset = ["UTC", "GMT"].iter().find_map(|name| offset.strip_suffix(name)).unwrap_or(offset).trim();
    let offset = match (offset.len(), offset.split_at_checked(3)) {
        (0, _) => "Z".to_owned(),
        (3, _) => format!("{offset}:00"),
        (5, Some((hours, minutes))) => format!("{hours}:{minutes}"),
        _ => offset.to_owned(),
    };
    Some(format!("{}T{time}{offset}", date.replace('/', "-")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_read_in_all_their_forms() {
        let noon = Some(Timestamp(1_749_988_800_000));
        let half_past = Some(Timestamp(1_749_988_800_500));
        for (value, at) in [
            (json!("2025-06-15T12:00:00Z"), noon),
            (json!("2025-06-15T12:00:00"), noon),
            (json!("2025-06-15T12:00"), noon),
            (json!("2025-06-15 12:00:00"), noon),
            (json!("2025-06-15 12:00:00Z"), noon),
            (json!("2025-06-15t12:00:00z"), noon),
            (json!("2025-06-15 12:00:00 UTC"), noon),
            (json!("2025-06-15 12:00:00 +0000 UTC"), noon),
            (json!("2025-06-15 12:00:00+00"), noon),
            (json!("2025-06-15T14:00:00+02:00"), noon),
            (json!("2025-06-15T14:00:00+0200"), noon),
            (json!("2025-06-15 10:00:00 -02:00"), noon),
            (json!("2025/06/15 12:00:00"), noon),
            (json!(" 2025-06-15T12:00:00.500000 "), half_past),
            (json!("2025-06-15 12:00:00,500"), half_past),
            (json!("Sun, 15 Jun 2025 12:00:00 GMT"), noon),
            (json!("2025-06-15"), Some(Timestamp(1_749_945_600_000))),
            (json!("1749988800"), noon),
            (json!("1749988800.5"), half_past),
            (json!("1749988800000"), noon),
            (json!(1_749_988_800), noon),
            (json!(1_749_988_800.5), half_past),
            (json!(1_749_988_800_000_000_i64), noon),
            (json!(1_749_988_800_000_000_000_i64), noon),
            (json!("yesterday"), None),
            (json!("2025-06-15T25:00:00"), None),
            (json!("2025-06-1é T12"), None),
            (json!("12:00"), None),
            (json!("."), None),
            (json!("1.2.3"), None),
            (json!(""), None),
            (json!(0), None),
            (json!(-5), None),
            (json!(true), None),
            (json!({"$date": 5}), None),
        ] {
            assert_eq!(read(&value), at, "{value}");
        }
    }

    #[test]
    fn what_is_no_time_is_kept_and_named() {
        let input = json!({"created_at": "yesterday", "created": 1_749_988_800, "timestamp": 1_749_988_801,
            "createdAt": "2025-06-15T12:00:00", "create_time": null});
        let (mut extra, mut notes) = (Map::new(), Vec::new());
        let time = take_time(input.as_object().unwrap(), &mut extra, &mut notes);
        assert_eq!(time, Some(Timestamp(1_749_988_800_000)));
        assert_eq!(json!(extra), json!({"created_at": "yesterday", "timestamp": 1_749_988_801}));
        assert_eq!(notes, [NoteKind::UnknownTime { field: "created_at" }]);
    }
}
