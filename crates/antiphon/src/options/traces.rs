//! Options of traces, with the variables of OpenTelemetry. An empty variable counts as absent, as
//! the standard requires.

use clap::Args;
use runtime::traces::{TraceSampler, TraceSettings, parse_attributes, parse_endpoint, parse_headers};

use crate::exit::ExitError;

/// The only supported protocol.
const PROTOCOL: &str = "http/protobuf";
const SAMPLER: &str = "parentbased_always_on";

/// The receiver and the sampler of traces.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Traces")]
pub(crate) struct Traces {
    /// URL of the receiver of traces over OTLP, such as http://collector:4318; without it there are
    /// no traces.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
    /// Protocol of the receiver; no other one is supported. [default: `http/protobuf`]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_PROTOCOL")]
    otlp_protocol: Option<String>,
    /// Headers for the receiver: `name=value`, separated by commas.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_HEADERS", hide_env_values = true)]
    otlp_headers: Option<String>,
    /// Name of the process in traces (`service.name`). [default: `antiphon-` and the role]
    #[arg(long, env = "OTEL_SERVICE_NAME")]
    otel_service_name: Option<String>,
    /// Attributes of the process in traces: `name=value`, separated by commas.
    #[arg(long, env = "OTEL_RESOURCE_ATTRIBUTES")]
    otel_resource_attributes: Option<String>,
    /// Sampler of traces: `always_on`, `always_off`, `traceidratio`, or one of them with the prefix
    /// `parentbased_`. [default: `parentbased_always_on`]
    #[arg(long, env = "OTEL_TRACES_SAMPLER")]
    otel_traces_sampler: Option<String>,
    /// Ratio of `traceidratio`, from 0 to 1.
    #[arg(long, env = "OTEL_TRACES_SAMPLER_ARG")]
    otel_traces_sampler_arg: Option<String>,
    /// Maximum number of spans that wait for the receiver; further ones are dropped and counted.
    #[arg(long, env = "OTEL_BSP_MAX_QUEUE_SIZE", default_value_t = 2_048, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    otel_max_queue_size: u32,
}

impl Traces {
    /// The settings of traces; `None` if traces are off. Settings are checked even then. `role` is
    /// the name as in `antiphon <role>`.
    ///
    /// # Errors
    /// One of the settings cannot be used.
    pub(crate) fn settings(&self, role: &str) -> Result<Option<TraceSettings>, ExitError> {
        let protocol = given(&self.otlp_protocol).unwrap_or(PROTOCOL);
        if protocol != PROTOCOL {
            let why = format!("{protocol:?} is not there; only {PROTOCOL}, mostly at port 4318");
            return Err(ExitError::Configuration(format!("OTEL_EXPORTER_OTLP_PROTOCOL: {why}")));
        }
        let name = given(&self.otel_traces_sampler).unwrap_or(SAMPLER);
        let ratio = given(&self.otel_traces_sampler_arg);
        let sampler =
            TraceSampler::parse(name, ratio).map_err(|error| wrong("OTEL_TRACES_SAMPLER", &error))?;
        let headers = parse_headers(given(&self.otlp_headers).unwrap_or_default())
            .map_err(|error| wrong("OTEL_EXPORTER_OTLP_HEADERS", &error))?;
        let mut attributes = parse_attributes(given(&self.otel_resource_attributes).unwrap_or_default())
            .map_err(|error| wrong("OTEL_RESOURCE_ATTRIBUTES", &error))?;
        if let Some(name) = given(&self.otel_service_name) {
            attributes.push(("service.name".to_owned(), name.to_owned()));
        }
        let Some(endpoint) = given(&self.otlp_endpoint) else { return Ok(None) };
        let endpoint =
            parse_endpoint(endpoint).map_err(|error| wrong("OTEL_EXPORTER_OTLP_ENDPOINT", &error))?;
        let (service_name, max_queue) = (format!("antiphon-{role}"), self.otel_max_queue_size as usize);
        Ok(Some(TraceSettings { endpoint, headers, service_name, attributes, sampler, max_queue }))
    }

    /// Checks the settings, and sends traces from now on if there is a receiver.
    ///
    /// # Errors
    /// One of the settings cannot be used.
    pub(crate) fn install(&self, role: &str) -> Result<(), ExitError> {
        match self.settings(role)? {
            Some(settings) => {
                runtime::traces::install(settings).map_err(|error| ExitError::Failed(error.to_string()))
            }
            None => Ok(()),
        }
    }
}

fn given(value: &Option<String>) -> Option<&str> {
    value.as_deref().map(str::trim).filter(|value| !value.is_empty())
}

fn wrong(variable: &str, error: &impl ToString) -> ExitError {
    ExitError::Configuration(format!("{variable}: {}", error.to_string()))
}
