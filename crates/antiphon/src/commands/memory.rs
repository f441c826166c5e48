//! Exports and imports an agent's facts as JSON Lines: a header line, then a line for each fact.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

use batches::memory::Fact;
use model::{ThreadId, quoting};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{FactRow, FactScope, Store};

use super::command_id::new_command_id;
use crate::exit::ExitError;
use crate::options::{ExportMemory, ImportMemory};
use crate::output;
use crate::output_file::OutputFile;

/// Facts that are read or written at once.
const PAGE: usize = 500;
/// Version of the format.
const VERSION: u32 = 1;
/// Maximum size of a line in bytes; a longer one cannot be a fact.
const MAX_LINE_BYTES: u64 = 64 << 10;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    antiphon_facts: u32,
    agent_id: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportedFact {
    fact_id: String,
    text: String,
    kind: String,
    confidence: f32,
    /// The fact applies to all threads of this user. If absent, it applies to `only_in_thread`, or
    /// else to all threads of the agent.
    user_id: Option<String>,
    only_in_thread: Option<String>,
    /// The thread in which the fact was found.
    thread_id: Option<String>,
    message_id: Option<String>,
    superseded_by: Option<String>,
    created_at: String,
}

impl From<FactRow> for ExportedFact {
    fn from(fact: FactRow) -> Self {
        let (user_id, only_in_thread) = match fact.scope {
            FactScope::User(user) => (Some(user), None),
            FactScope::Thread(thread) => (None, Some(thread.to_string())),
            FactScope::Agent => (None, None),
        };
        Self {
            fact_id: fact.id,
            text: fact.text,
            kind: fact.kind,
            confidence: fact.confidence,
            user_id,
            only_in_thread,
            thread_id: fact.thread.map(|thread| thread.to_string()),
            message_id: fact.assistant_message_id,
            superseded_by: fact.superseded_by,
            created_at: wire::rfc3339(fact.created_at).unwrap_or_default(),
        }
    }
}

impl ExportedFact {
    fn row(self) -> Result<FactRow, String> {
        let thread = |text: &str| ThreadId::parse(text).map_err(|error| format!("{text}: {error}"));
        let scope = match (self.user_id, self.only_in_thread) {
            (Some(_), Some(_)) => return Err("user_id and only_in_thread: one of them".to_owned()),
            (Some(user), None) if (1..=256).contains(&user.len()) && !user.contains('\0') => {
                FactScope::User(user)
            }
            (Some(_), None) => return Err("user_id must have 1 to 256 bytes".to_owned()),
            (None, Some(of)) => FactScope::Thread(thread(&of)?),
            (None, None) => FactScope::Agent,
        };
        let is_id =
            !self.fact_id.contains(char::is_whitespace) && quoting::not_of_one_line(&self.fact_id).is_none();
        if !(1..=256).contains(&self.fact_id.len()) || !is_id {
            return Err(
                "fact_id must have 1 to 256 bytes, without white space and control characters".to_owned()
            );
        }
        // Exports of earlier builds may have facts of several lines.
        let text = quoting::one_line(&self.text).into_owned();
        let fact = Fact { text, kind: self.kind, confidence: self.confidence, supersedes: Vec::new() };
        if let Some(fault) = fact.fault() {
            return Err(fault.to_string());
        }
        // A fact that applies only to one thread is erased with that thread.
        let found_in = match &scope {
            FactScope::Thread(of) => Some(of.clone()),
            FactScope::User(_) | FactScope::Agent => self.thread_id.as_deref().map(thread).transpose()?,
        };
        let created_at = wire::parse_rfc3339(&self.created_at);
        Ok(FactRow {
            id: self.fact_id,
            scope,
            thread: found_in,
            assistant_message_id: self.message_id,
            text: fact.text,
            kind: fact.kind,
            confidence: fact.confidence,
            superseded_by: self.superseded_by,
            created_at: created_at
                .ok_or_else(|| format!("created_at {:?} is not RFC 3339", self.created_at))?,
        })
    }
}

pub(super) async fn export(store: &Store, options: &ExportMemory) -> Result<(), ExitError> {
    let mut out = OutputFile::open(options.output.as_deref())?;
    let header = Header { antiphon_facts: VERSION, agent_id: options.agent.to_string() };
    write_line(&mut out, &header)?;
    let (mut after, mut written) = (String::new(), 0_u64);
    loop {
        let facts = store.facts_after(&options.agent, &after, PAGE as u32).await?;
        let Some(last) = facts.last() else { break };
        after.clone_from(&last.id);
        written += facts.len() as u64;
        for fact in facts {
            write_line(&mut out, &ExportedFact::from(fact))?;
        }
    }
    out.close()?;
    output::eprint_line(&format!("{written} facts"));
    Ok(())
}

fn write_line(out: &mut OutputFile, line: &impl Serialize) -> Result<(), ExitError> {
    let line = serde_json::to_string(line).map_err(|error| ExitError::Failed(error.to_string()))?;
    out.write(format!("{line}\n"))
}

pub(super) async fn import(store: &Store, options: &ImportMemory) -> Result<(), ExitError> {
    let mut source: Box<dyn BufRead + Send> = match &options.file {
        None => Box::new(BufReader::new(io::stdin())),
        Some(path) => {
            let file = File::open(path);
            let failed = |error| ExitError::Failed(format!("{} cannot be read: {error}", path.display()));
            Box::new(BufReader::new(file.map_err(failed)?))
        }
    };
    // The import runs in the scope of the tenant, so that it is refused if the tenant was erased.
    let store = &store.for_tenant(options.agent.tenant());
    if store.agent(&options.agent).await?.is_none() {
        return Err(ExitError::Failed(format!("there is no agent {}", options.agent)));
    }
    let header: Header = match read_line(&mut source, 1)? {
        Some(header) => header,
        None => return Err(ExitError::Failed("the input is empty".to_owned())),
    };
    if header.antiphon_facts != VERSION {
        let version = header.antiphon_facts;
        return Err(ExitError::Failed(format!("line 1: version {version} is not known, {VERSION} is")));
    }
    let (mut number, mut read, mut new) = (1, 0_u64, 0);
    loop {
        let mut page = Vec::new();
        while page.len() < PAGE {
            number += 1;
            let Some(fact) = read_line::<ExportedFact>(&mut source, number)? else { break };
            page.push(fact.row().map_err(|error| ExitError::Failed(format!("line {number}: {error}")))?);
        }
        if page.is_empty() {
            break;
        }
        read += page.len() as u64;
        new += store.import_facts(&options.agent, &page, &new_command_id()?, &options.actor).await?;
    }
    let too_many = store.trim_facts(&options.agent).await?;
    let json = json!({ "facts": read, "new_facts": new, "beyond_bound": too_many });
    output::print(options.database.output.format(), &json, || output::key_value_table(&json))
}

/// The next line; `None` at the end.
fn read_line<T: for<'a> Deserialize<'a>>(
    source: &mut impl BufRead,
    number: u64,
) -> Result<Option<T>, ExitError> {
    let failed = |error: String| ExitError::Failed(format!("line {number}: {error}"));
    let mut line = String::new();
    let mut limited = io::Read::take(source, MAX_LINE_BYTES);
    let bytes = limited.read_line(&mut line).map_err(|error| failed(error.to_string()))?;
    if bytes == 0 {
        return Ok(None);
    }
    serde_json::from_str(&line).map(Some).map_err(|error| failed(error.to_string()))
}
