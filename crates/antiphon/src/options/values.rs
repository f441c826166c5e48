//! Parsers of option values.

use std::time::Duration;

use model::{AgentId, PartitionCount, WorkflowName};
use reqwest::header::HeaderName;

pub(super) fn partitions(text: &str) -> Result<PartitionCount, String> {
    let count = text.trim().parse::<u64>().map_err(|error| error.to_string())?;
    PartitionCount::new(count).map_err(|error| error.to_string())
}

/// The name of an agent, without a tenant.
pub(super) fn agent_name(text: &str) -> Result<AgentId, String> {
    AgentId::of_tenant(None, text.trim()).map_err(|error| error.to_string())
}

/// The name of an HTTP header; an empty text names none.
pub(super) fn header_name(text: &str) -> Result<Option<HeaderName>, String> {
    let name = text.trim();
    let parse =
        || HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no name of a header"));
    (!name.is_empty()).then(parse).transpose()
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    match text.trim().parse::<f64>() {
        Ok(seconds) if (0.1..=1e7).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        Ok(_) => Err("it must be from 0.1 to 10000000 seconds".to_owned()),
        Err(_) => Err("it must be a number of seconds, without a unit".to_owned()),
    }
}

/// A time in seconds; 0 is allowed and means none.
pub(super) fn delay(text: &str) -> Result<Duration, String> {
    match text.trim() {
        "0" => Ok(Duration::ZERO),
        text => up_to_a_day(text),
    }
}

pub(super) fn up_to_a_day(text: &str) -> Result<Duration, String> {
    let duration = seconds(text)?;
    match duration <= Duration::from_secs(86_400) {
        true => Ok(duration),
        false => Err("it must be at most 86400 seconds, a day".to_owned()),
    }
}

pub(super) fn workflow(text: &str) -> Result<WorkflowName, String> {
    WorkflowName::parse(text).map_err(|error| error.to_string())
}

/// A lease is renewed after a third of its lifetime, and sessions trust it for four fifths. Below
/// two seconds a busy machine loses it.
pub(super) fn lease(text: &str) -> Result<Duration, String> {
    let lease = seconds(text)?;
    match (2.0..=300.0).contains(&lease.as_secs_f64()) {
        true => Ok(lease),
        false => Err("a lease must last from 2 to 300 seconds".to_owned()),
    }
}

pub(super) fn worker_id(text: &str) -> Result<String, String> {
    model::ThreadId::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Checked with every engine, even one that calls no tools, so that a wrong URL is found at the
/// start.
pub(super) fn mcp_url(text: &str) -> Result<String, String> {
    workflow::Tools::check_mcp_url(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_refused() {
        for wrong in ["", " ", "0", "-1", "10 m", "10s", "nan", "inf", "1e9", "'10'"] {
            assert!(seconds(wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["", "0", "3", "-8", "2048", "8.0", "1e3"] {
            assert!(partitions(wrong).is_err(), "{wrong:?}");
        }
        assert!(lease("1").is_err() && lease("2").is_ok());
        assert!(up_to_a_day("86401").is_err() && up_to_a_day("0").is_err() && up_to_a_day("86400").is_ok());
        assert!(delay("0").is_ok_and(|delay| delay.is_zero()) && delay("5").is_ok() && delay("-1").is_err());
        assert!(workflow("a.b").is_err() && workflow("").is_err() && workflow("default").is_ok());
        for wrong in ["", "127.0.0.1:8090", "localhost:8090/mcp", "/mcp", "http://", "ftp://a/mcp"] {
            assert!(mcp_url(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(mcp_url("http://127.0.0.1:8090/mcp").as_deref(), Ok("http://127.0.0.1:8090/mcp"));
        assert!(worker_id("a b").is_err() && worker_id("pod-1").is_ok());
    }
}
