//! Parses cron patterns with errors that name the field.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

/// The fields in order, each with its minimum and maximum.
const FIELDS: [(&str, u32, u32); 5] =
    [("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7)];

/// Parses `minute hour day month weekday`.
///
/// # Errors
/// The number of fields is not five, or a field is invalid; the error names the first invalid one.
pub(super) fn parse(text: &str) -> Result<Cron, String> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err("five fields are expected: minute hour day month weekday".to_owned());
    }
    parser().parse(text).map_err(|error| {
        for (number, ((name, low, high), field)) in FIELDS.iter().zip(&fields).enumerate() {
            let mut alone = ["*"; FIELDS.len()];
            alone[number] = field;
            if parser().parse(&alone.join(" ")).is_err() {
                return format!(
                    "{name} `{field}`: expected *, or numbers from {low} to {high} with , - and /"
                );
            }
        }
        error.to_string()
    })
}

/// Refuses patterns that are valid but hardly intended. Stored patterns are not checked, because
/// they were accepted before.
///
/// # Errors
/// A list has an empty item, or a step is greater than its range; the error names the field.
pub(super) fn check_meant(text: &str) -> Result<(), String> {
    for ((name, low, high), field) in FIELDS.iter().zip(text.split_whitespace()) {
        if field.split(',').any(str::is_empty) {
            return Err(format!("{name} `{field}`: an item of the list is empty"));
        }
        let step = |item: &str| item.split_once('/').and_then(|(_, step)| step.parse::<u32>().ok());
        if field.split(',').filter_map(step).any(|step| step > high - low) {
            return Err(format!("{name} `{field}`: the step is greater than the range from {low} to {high}"));
        }
    }
    Ok(())
}

fn parser() -> CronParser {
    CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build()
}
