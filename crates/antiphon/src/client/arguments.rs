//! Builds the command line of API commands, and reads a call from it.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Map, Number, Value};

use super::description::{Events, InputPlace, Operation, OperationInput, ValueKind};
use super::table::{AnswerView, ApiCommand, COMMANDS, NOUNS};
use crate::exit::ExitError;
use crate::output::OutputArguments;

/// Prefix of argument ids, because `format` and others are ids of options that every command has.
const INPUT: &str = "input:";
const BODY: &str = "body";
const ALL: &str = "all";
const STREAM: &str = "stream";
const LIMIT: &str = "limit";
/// Flag of commands that act only if they are confirmed, and then wait for the end of their work.
const YES: &str = "yes";
const WAIT: &str = "wait-seconds";
/// The flag for the file of an export.
const FILE: &str = "file";
/// Query parameter that these commands set while they are not confirmed: nothing is changed.
const DRY_RUN: &str = "dry_run";

/// The address of the API and the credential.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "API")]
pub(crate) struct ApiServer {
    /// The API: the address of a gateway, or of the load balancer in front of gateways.
    #[arg(long = "url", env = "ANTIPHON_URL", default_value = "http://127.0.0.1:8080")]
    pub(super) url: String,
    /// An API key, or a token of the identity provider. Not needed by a gateway with --insecure.
    #[arg(long, env = "ANTIPHON_API_KEY", hide_env_values = true)]
    pub(super) api_key: Option<String>,
}

/// One call of an operation, ready to be sent.
#[derive(Debug)]
pub(crate) struct Call {
    pub(super) command: &'static ApiCommand,
    pub(super) server: ApiServer,
    pub(super) output: OutputArguments,
    pub(super) method: String,
    /// The segments of the path, not escaped yet.
    pub(super) path: Vec<String>,
    pub(super) query: Vec<(String, String)>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Option<Value>,
    pub(super) is_streamed: bool,
    pub(super) pages: Option<Pages>,
    /// How long to wait for the end of the operation that the call begins.
    pub(super) wait: Option<Duration>,
    /// False if the call only shows what it would do.
    pub(super) is_confirmed: bool,
    /// The file for the lines of an export; standard output without it.
    pub(super) file: Option<PathBuf>,
}

/// Limits for reading a list with pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pages {
    /// Number of items; `None` for one page, whose length the API chooses.
    pub(super) wanted: Option<u64>,
    /// Maximum number of items in a page.
    pub(super) longest: u64,
}

/// Adds the commands of the API to the command line. The arguments of a command are only built when
/// it is used.
pub(crate) fn with_commands(mut root: Command) -> Command {
    let mut nouns: Vec<&'static str> = COMMANDS.iter().map(|command| command.noun).collect();
    nouns.dedup();
    for noun in nouns {
        root = match root.find_subcommand(noun) {
            Some(_) => root.mut_subcommand(noun, |command| command.defer(with_verbs)),
            None => {
                let about = NOUNS.iter().find(|(of, _)| *of == noun).map_or("", |(_, about)| about);
                root.subcommand(Command::new(noun).about(about).defer(with_verbs))
            }
        };
    }
    root
}

fn with_verbs(command: Command) -> Command {
    let verbs = COMMANDS.iter().filter(|row| row.noun == command.get_name());
    let (alone, verbs): (Vec<_>, Vec<_>) = verbs.partition(|row| row.verb.is_empty());
    if let Some(alone) = alone.first() {
        return with_inputs(command, alone);
    }
    let subcommands = verbs.into_iter().map(|row| with_inputs(Command::new(row.verb), row));
    command.subcommand_required(true).arg_required_else_help(true).subcommands(subcommands)
}

/// Adds the inputs of the operation to a command.
fn with_inputs(mut command: Command, row: &'static ApiCommand) -> Command {
    let Some(operation) = Operation::of(row.operation) else { return command };
    let names: Vec<String> = operation.inputs.iter().map(|input| flag(input, row)).collect();
    for input in &operation.inputs {
        if is_taken(input, row) {
            command = command.arg(argument(input, row, &names));
        }
    }
    if operation.has_body() {
        let help = "The body as JSON; `@<file>` reads it from a file, `-` from standard input. Flags set single fields of it";
        command = command.arg(Arg::new(BODY).long(BODY).value_name("JSON").help(help));
    }
    if is_paged(&operation) {
        let help = "All of them, page by page";
        command = command
            .arg(Arg::new(ALL).long(ALL).action(ArgAction::SetTrue).conflicts_with(id(LIMIT)).help(help));
    }
    if row.shown == AnswerView::Awaited {
        let help = "Do it; without it only show what there is";
        command = command.arg(Arg::new(YES).long(YES).action(ArgAction::SetTrue).help(help));
        let help = "Time in seconds to wait for the end; with 0 only start it";
        let wait = Arg::new(WAIT).long(WAIT).value_name("seconds").default_value("300");
        command = command.arg(wait.value_parser(clap::value_parser!(u32)).help(help));
    }
    if row.shown == AnswerView::Export {
        let help = "File for the lines, which appears when it is complete; standard output without it";
        let file = Arg::new(FILE).long(FILE).value_parser(clap::value_parser!(PathBuf));
        command = command.arg(file.help(help));
    }
    if operation.events == Events::OnRequest {
        let help = "Print the events of the answer while it comes, one a line";
        command = command.arg(Arg::new(STREAM).long(STREAM).action(ArgAction::SetTrue).help(help));
    }
    let about = command.get_about().cloned().unwrap_or_else(|| operation.summary.clone().into());
    let text = format!("{}\n\n{}", operation.summary, operation.description);
    // Must be last, because flattened groups of options replace the description of the command.
    let command = OutputArguments::augment_args(ApiServer::augment_args(command));
    command.about(about).long_about(text.trim().to_owned())
}

/// Tickets are only for browsers, and `--yes` decides whether something is changed.
fn is_taken(input: &OperationInput, row: &ApiCommand) -> bool {
    input.name != "ticket" && !(row.shown == AnswerView::Awaited && input.name == DRY_RUN)
}

/// A list that has its own query parameter `all` gets no flag of that name.
fn is_paged(operation: &Operation) -> bool {
    operation.has_query("next") && operation.has_query(LIMIT) && !operation.has_query(ALL)
}

fn id(name: &str) -> String {
    format!("{INPUT}{name}")
}

fn flag(input: &OperationInput, row: &ApiCommand) -> String {
    if let Some((_, flag)) = row.flags.iter().find(|(name, _)| *name == input.name) {
        return (*flag).to_owned();
    }
    let name = input.name.to_ascii_lowercase();
    let name = name.strip_prefix("x-antiphon-").or_else(|| name.strip_prefix("x-")).unwrap_or(&name);
    name.replace('_', "-")
}

fn argument(input: &OperationInput, row: &ApiCommand, names: &[String]) -> Arg {
    let name = flag(input, row);
    let kind = input.kind;
    let mut arg = Arg::new(id(&input.name))
        .value_name(name.clone())
        .value_parser(move |text: &str| value(kind, text))
        .help(help(input));
    let is_positional = input.place == InputPlace::Path || row.arguments.contains(&input.name.as_str());
    if input.is_required {
        // A field in --body does not have to be given as a flag too.
        arg = match input.place {
            InputPlace::Body => arg.required_unless_present(BODY),
            InputPlace::Path | InputPlace::Query | InputPlace::Header => arg.required(true),
        };
    }
    if is_positional {
        return arg;
    }
    if let Some(short) = name.strip_suffix("-id").filter(|short| !names.iter().any(|name| name == short)) {
        arg = arg.visible_alias(short.to_owned());
    }
    arg = arg.long(name);
    match input.kind {
        ValueKind::Boolean => {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("true|false")
        }
        ValueKind::Texts => arg.value_delimiter(',').action(ArgAction::Append),
        ValueKind::Text | ValueKind::Moment | ValueKind::Number | ValueKind::Object | ValueKind::Json => arg,
    }
}

fn help(input: &OperationInput) -> String {
    match input.name.as_str() {
        LIMIT => {
            format!("How many items, over several pages of {} where need be", input.maximum.unwrap_or(1))
        }
        _ => input.help.trim_end_matches('.').to_owned(),
    }
}

fn value(kind: ValueKind, text: &str) -> Result<Value, String> {
    match kind {
        ValueKind::Text | ValueKind::Texts => Ok(Value::from(text)),
        ValueKind::Moment => Ok(Value::from(moment(text))),
        ValueKind::Number => {
            text.parse::<Number>().map(Value::Number).map_err(|_| "it is not a number".to_owned())
        }
        ValueKind::Boolean => {
            text.parse().map(Value::Bool).map_err(|_| "it must be true or false".to_owned())
        }
        ValueKind::Object => {
            let object = serde_json::from_str::<Map<String, Value>>(text);
            object.map(Value::Object).map_err(|error| format!("it is not a JSON object: {error}"))
        }
        ValueKind::Json => serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}")),
    }
}

/// Turns a day into its first moment. The API refuses any other text that is no time.
fn moment(text: &str) -> String {
    let midnight = format!("{text}T00:00:00Z");
    if wire::parse_rfc3339(&midnight).is_some() { midnight } else { text.to_owned() }
}

impl Call {
    /// The call on the command line; `None` if it is another command.
    pub(crate) fn read(matches: &ArgMatches) -> Option<Result<Self, ExitError>> {
        let (noun, inner) = matches.subcommand()?;
        let (verb, inner) = inner.subcommand().unwrap_or(("", inner));
        let row = COMMANDS.iter().find(|row| row.noun == noun && row.verb == verb)?;
        Some(Self::of(row, inner))
    }

    fn of(command: &'static ApiCommand, matches: &ArgMatches) -> Result<Self, ExitError> {
        let wrong = |error: clap::Error| ExitError::Configuration(error.to_string());
        let operation = Operation::of(command.operation);
        let operation = operation
            .ok_or_else(|| ExitError::Failed(format!("there is no operation {}", command.operation)))?;
        let server = ApiServer::from_arg_matches(matches).map_err(wrong)?;
        let output = OutputArguments::from_arg_matches(matches).map_err(wrong)?;
        let mut call = Self::bare(command, server, output, operation.method.to_uppercase());
        call.is_streamed = operation.events == Events::Always;
        if command.shown == AnswerView::Export {
            call.file = matches.get_one::<PathBuf>(FILE).cloned();
        }
        if operation.events == Events::OnRequest {
            call.is_streamed = matches.get_flag(STREAM);
        }
        if command.shown == AnswerView::Awaited {
            call.is_confirmed = matches.get_flag(YES);
            let wait = matches.get_one::<u32>(WAIT).copied().unwrap_or_default();
            call.wait = Some(Duration::from_secs(wait.into()));
            if !call.is_confirmed {
                call.query.push((DRY_RUN.to_owned(), "true".to_owned()));
            }
        }
        if operation.has_body() {
            call.body = Some(whole_body(matches.get_one::<String>(BODY))?);
        }
        for input in operation.inputs.iter().filter(|input| is_taken(input, command)) {
            let id = id(&input.name);
            let given: Vec<&Value> = matches.get_many(&id).into_iter().flatten().collect();
            if !given.is_empty() {
                call.take(input, &given);
            }
        }
        call.path = path(&operation.path, matches)?;
        if is_paged(&operation) {
            call.pages = Some(call.wanted_pages(&operation, matches));
        }
        Ok(call)
    }

    /// A call that reads this path of the same API.
    pub(super) fn to_place(&self, path: &str) -> Self {
        let path = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        Self { path, ..Self::bare(self.command, self.server.clone(), self.output, "GET".to_owned()) }
    }

    /// A call without a path and without inputs.
    fn bare(
        command: &'static ApiCommand,
        server: ApiServer,
        output: OutputArguments,
        method: String,
    ) -> Self {
        Self {
            command,
            server,
            output,
            method,
            path: Vec::new(),
            query: Vec::new(),
            headers: Vec::new(),
            body: None,
            is_streamed: false,
            pages: None,
            wait: None,
            is_confirmed: true,
            file: None,
        }
    }

    fn take(&mut self, input: &OperationInput, given: &[&Value]) {
        let texts = || given.iter().map(|value| text(value)).collect::<Vec<_>>().join(",");
        match input.place {
            InputPlace::Path => {}
            InputPlace::Query => self.query.push((input.name.clone(), texts())),
            InputPlace::Header => self.headers.push((input.name.clone(), texts())),
            InputPlace::Body => {
                let value = match (input.kind, given) {
                    (ValueKind::Texts, given) => {
                        Value::Array(given.iter().map(|value| (*value).clone()).collect())
                    }
                    (_, given) => given.first().map_or(Value::Null, |value| (*value).clone()),
                };
                if let Some(Value::Object(fields)) = &mut self.body {
                    fields.insert(input.name.clone(), value);
                }
            }
        }
    }

    /// Removes the limit from the query, because the limit counts items, which may span several
    /// pages.
    fn wanted_pages(&mut self, operation: &Operation, matches: &ArgMatches) -> Pages {
        let limit = operation.inputs.iter().find(|input| input.name == LIMIT);
        let longest = limit.and_then(|input| input.maximum).unwrap_or(1);
        let wanted = self.query.iter().position(|(name, _)| name == LIMIT);
        let wanted = wanted.and_then(|at| self.query.get(at)?.1.parse().ok());
        if wanted.is_some() {
            self.query.retain(|(name, _)| name != LIMIT);
        }
        Pages { wanted: if matches.get_flag(ALL) { Some(u64::MAX) } else { wanted }, longest }
    }
}

/// The text of a value in a query or a path.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn path(template: &str, matches: &ArgMatches) -> Result<Vec<String>, ExitError> {
    let mut segments = Vec::new();
    for part in template.split('/').filter(|part| !part.is_empty()) {
        let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) else {
            segments.push(part.to_owned());
            continue;
        };
        let given = matches.get_one::<Value>(&id(name)).map(text).unwrap_or_default();
        // A URL would drop these segments.
        if ["", ".", ".."].contains(&given.as_str()) {
            return Err(ExitError::Configuration(format!("{name} cannot be {given:?}")));
        }
        segments.push(given);
    }
    Ok(segments)
}

fn whole_body(given: Option<&String>) -> Result<Value, ExitError> {
    let Some(given) = given else { return Ok(Value::Object(Map::new())) };
    let unread = |what: &str, error: io::Error| ExitError::Failed(format!("{what} cannot be read: {error}"));
    let json = match given.strip_prefix('@') {
        Some(file) => fs::read_to_string(file).map_err(|error| unread(file, error))?,
        None if given == "-" => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map_err(|error| unread("standard input", error))?;
            text
        }
        None => given.clone(),
    };
    value(ValueKind::Object, &json).map_err(|error| ExitError::Configuration(format!("--body: {error}")))
}
