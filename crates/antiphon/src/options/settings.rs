//! The settings of a command, with their values and sources.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde::Serialize;

/// Shown instead of a secret.
const MASK: &str = "***";
/// Parameters of a URL's query that are not secret.
const SHOWN_PARAMETERS: [&str; 4] = ["sslmode", "sslrootcert", "application_name", "host"];
/// The output format is not a setting of the role.
const OUTPUT_FORM: &str = "form";

/// One setting in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    /// The variable, or the flag if there is no variable.
    pub(crate) name: String,
    /// Secrets are masked. `None` if nothing is set and there is no default.
    pub(crate) value: Option<String>,
    /// Where the value comes from.
    pub(crate) source: SettingSource,
}

/// The source of a value: a flag overrides the environment, which overrides the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SettingSource {
    Flag,
    Environment,
    Default,
    Unset,
}

impl SettingSource {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Environment => "environment",
            Self::Default => "default",
            Self::Unset => "unset",
        }
    }
}

/// The settings of the innermost command that was given. `command` must have been built, because
/// only then does it have the flags of all commands.
pub(crate) fn settings_in_force(command: &Command, matches: &ArgMatches) -> Vec<Setting> {
    let (mut command, mut matches) = (command, matches);
    while let Some((name, inner)) = matches.subcommand() {
        let Some(found) = command.find_subcommand(name) else { break };
        (command, matches) = (found, inner);
    }
    let is_setting = |argument: &&Arg| {
        let is_help = matches!(
            argument.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        );
        !is_help && argument.get_id() != OUTPUT_FORM
    };
    command.get_arguments().filter(is_setting).map(|argument| setting(argument, matches)).collect()
}

fn setting(argument: &Arg, matches: &ArgMatches) -> Setting {
    let id = argument.get_id().as_str();
    let name = match (argument.get_env(), argument.get_long()) {
        (Some(variable), _) => variable.to_string_lossy().into_owned(),
        (None, Some(long)) => format!("--{long}"),
        (None, None) => id.to_owned(),
    };
    let source = match matches.value_source(id) {
        Some(ValueSource::CommandLine) => SettingSource::Flag,
        Some(ValueSource::EnvVariable) => SettingSource::Environment,
        Some(_) => SettingSource::Default,
        None => SettingSource::Unset,
    };
    let values = matches.try_get_raw(id).ok().flatten();
    let value = values.map(|raw| raw.map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(","));
    let value = value.map(|value| match argument.is_hide_env_values_set() && !id.ends_with("_url") {
        true => MASK.to_owned(),
        false => without_secrets(&value),
    });
    Setting { name, value, source }
}

/// Masks logins of URLs in the value, and query parameters that are not known to be harmless. Any
/// other text stays as it is.
fn without_secrets(value: &str) -> String {
    let Some((first, rest)) = value.split_once("://") else { return value.to_owned() };
    let parts: Vec<&str> = rest.split("://").collect();
    let logins = parts.iter().filter(|part| part.contains('@')).count();
    // A secret that contains a part of a URL, or several URLs of which only some have logins.
    if logins != 0 && logins != parts.len() {
        return MASK.to_owned();
    }
    let part = |part: &&str| match part.rsplit_once('@') {
        Some((_, host)) => format!("{MASK}@{}", without_secret_parameters(host)),
        None => without_secret_parameters(part),
    };
    format!("{first}://{}", parts.iter().map(part).collect::<Vec<_>>().join("://"))
}

fn without_secret_parameters(url: &str) -> String {
    let Some((url, query)) = url.split_once('?') else { return url.to_owned() };
    let parameter = |parameter: &str| match parameter.split_once('=') {
        Some((name, _)) if !SHOWN_PARAMETERS.contains(&name) => format!("{name}={MASK}"),
        _ => parameter.to_owned(),
    };
    format!("{url}?{}", query.split('&').map(parameter).collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_of_urls_are_masked() {
        for (value, shown) in [
            ("nats://a:4222", "nats://a:4222"),
            ("nats://token@a:4222", "nats://***@a:4222"),
            ("nats://u:p,w@a:4222,nats://u:x@b:4222", "nats://***@a:4222,nats://***@b:4222"),
            ("nats://u:p@a,nats://b", "***"),
            (
                "postgres://u:p@ss@h/d?sslmode=require&password=x",
                "postgres://***@h/d?sslmode=require&password=***",
            ),
            ("postgres://h/d?password=x", "postgres://h/d?password=***"),
            ("127.0.0.1:8080", "127.0.0.1:8080"),
        ] {
            assert_eq!(without_secrets(value), shown, "{value}");
        }
    }
}
