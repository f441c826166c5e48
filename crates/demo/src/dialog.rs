//! Part 2 of the demo: a thread in which a person talks, with streamed answers.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;
use tokio::time::timeout;

use crate::{
    environment::DemoEnvironment,
    input::{Line, Lines},
    screen::{Screen, Style},
    subscriber::{PieceKind, Subscriber, SubscriberEvent},
    workflows::Engine,
};
use testkit::api;

/// Time without output after which no answer is expected any more. It is longer than a lease,
/// because an owner may die in the meantime.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(150);
/// The most characters of a tool's result that are shown.
const RESULT_CHARS: usize = 160;
/// Limit until the stream is open.
const OPEN_LIMIT: Duration = Duration::from_secs(20);

/// The dialog as this terminal saw it.
#[derive(Debug)]
pub(super) struct Dialog {
    pub(super) thread: String,
    pub(super) turns: Vec<DialogTurn>,
    /// Expected events that did not happen.
    pub(super) missing: Vec<String>,
    /// Whether a tool had to be called and an answer to be stopped.
    pub(super) has_all_kinds: bool,
    /// The person wants to see the other parts.
    pub(super) goes_on: bool,
}

/// One input and its answer.
#[derive(Debug, Clone)]
pub(super) struct DialogTurn {
    pub(super) id: String,
    pub(super) input: String,
    /// All text that was shown, in order.
    pub(super) text: String,
    pub(super) end: AnswerEnd,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerEnd {
    Complete,
    /// Stopped by the command `/stop`.
    Stopped,
    Failed,
}

/// The command in a line.
#[derive(Debug, PartialEq, Eq)]
enum LineCommand {
    Nothing,
    Say(String),
    Stop,
    Tasks,
    Quit,
    Unknown(String),
}

/// Talks until the person, or the script, ends the dialog.
pub(super) async fn show(
    environment: &DemoEnvironment,
    lines: &mut Lines,
    screen: &mut Screen,
) -> Result<Dialog> {
    let is_scripted = lines.are_scripted();
    let thread = format!("demo-{}", environment.tag);
    let engine = Engine::for_people();
    let settings = json!({"system": SYSTEM});
    environment.api.put_agent(&thread, engine.workflow(), settings).await?;
    introduce(environment, engine, &thread, is_scripted, screen);
    let mut subscriber = Subscriber::start(environment.api.0, &thread);
    open(&mut subscriber).await?;
    let dialog =
        Dialog { thread, turns: Vec::new(), missing: Vec::new(), has_all_kinds: false, goes_on: true };
    let mut room = Room { environment, subscriber, lines, dialog };
    room.run(is_scripted, screen).await?;
    if is_scripted {
        room.expect(engine);
    }
    Ok(room.dialog)
}

const SYSTEM: &str = "You answer on a terminal: in plain text, briefly.";

fn introduce(
    environment: &DemoEnvironment,
    engine: Engine,
    thread: &str,
    is_scripted: bool,
    screen: &mut Screen,
) {
    screen.heading(2, "A thread, and answers as they come");
    let who = match engine {
        Engine::Script => "a script",
        Engine::Model => "your model",
    };
    screen.dim(&format!(
        "Thread {thread}: what you say is stored in NATS, answered by {who} through any worker,"
    ));
    screen
        .dim("and committed with its answer as one turn. Anybody may watch the same stream, on any gateway:");
    screen.text(&format!("curl -N http://{}/v1/threads/{thread}/events", environment.api.0));
    if !is_scripted {
        screen.dim("Type a line. /stop ends an answer, /tasks goes on to ten agents, /quit ends all.");
    }
    screen.text("");
}

/// Waits until the stream is open; without that the beginning of an answer would come as one piece.
async fn open(subscriber: &mut Subscriber) -> Result<()> {
    let opened =
        timeout(OPEN_LIMIT, async { while subscriber.next().await != SubscriberEvent::Opened {} }).await;
    match opened {
        Ok(()) => Ok(()),
        Err(_) => bail!("the gateway did not open the event stream within {OPEN_LIMIT:?}"),
    }
}

struct Room<'a> {
    environment: &'a DemoEnvironment,
    subscriber: Subscriber,
    lines: &'a mut Lines,
    dialog: Dialog,
}

impl Room<'_> {
    async fn run(&mut self, echoes: bool, screen: &mut Screen) -> Result<()> {
        loop {
            if !echoes {
                screen.prompt();
            }
            let line = self.lines.next().await;
            if echoes && let Line::Text(text) = &line {
                screen.prompt();
                screen.typed(text);
            }
            match command(line) {
                LineCommand::Nothing => {}
                LineCommand::Say(input) => self.turn(input, screen).await?,
                LineCommand::Stop => screen.dim("nothing is being answered"),
                LineCommand::Unknown(name) => screen.dim(&unknown(&name)),
                LineCommand::Tasks => return Ok(()),
                LineCommand::Quit => {
                    self.dialog.goes_on = false;
                    return Ok(());
                }
            }
        }
    }

    async fn turn(&mut self, input: String, screen: &mut Screen) -> Result<()> {
        let accepted = match self.environment.api.say(&self.dialog.thread, &input).await {
            Ok(accepted) => accepted,
            Err(error) => {
                screen.text(&format!("The gateway did not take it: {error:#}"));
                return Ok(());
            }
        };
        let turn = DialogTurn { id: accepted.id.clone(), input, text: String::new(), end: AnswerEnd::Failed };
        let mut answer = AnswerView { accepted, turn, call: None, last: None, pieces: 0, is_stopped: false };
        let ended = self.follow(&mut answer, screen).await;
        screen.end_pieces();
        self.dialog.turns.push(answer.turn);
        ended
    }

    /// Shows the answer until it has ended; lines that are typed meanwhile may stop it.
    async fn follow(&mut self, answer: &mut AnswerView, screen: &mut Screen) -> Result<()> {
        loop {
            tokio::select! {
                biased;
                seen = timeout(ANSWER_TIMEOUT, self.subscriber.next()) => {
                    let Ok(seen) = seen else { bail!("{}", no_answer(&answer.accepted.id)) };
                    if answer.show(seen, screen) {
                        return Ok(());
                    }
                }
                line = self.lines.next_while_answering(answer.pieces) => {
                    self.interject(line, answer, screen).await;
                }
            }
        }
    }

    async fn interject(&mut self, line: Line, answer: &mut AnswerView, screen: &mut Screen) {
        if self.lines.are_scripted() {
            screen.end_pieces();
            screen.dim("/stop");
        } else {
            screen.entered();
        }
        match command(line) {
            LineCommand::Nothing => {}
            LineCommand::Stop => self.stop(answer, screen).await,
            LineCommand::Say(_) | LineCommand::Tasks => {
                screen.dim("an answer is under way: wait for it, or /stop")
            }
            LineCommand::Unknown(name) => screen.dim(&unknown(&name)),
            LineCommand::Quit => {
                self.lines.put_back(Line::End);
                self.stop(answer, screen).await;
            }
        }
    }

    /// If the answer cannot be stopped, it ends by itself, so the demo continues.
    async fn stop(&mut self, answer: &mut AnswerView, screen: &mut Screen) {
        match self.environment.api.stop(&answer.accepted.id).await {
            Ok(reply) => match reply["error"].as_str() {
                None => answer.is_stopped = true,
                Some(why) => screen.dim(&format!("(not stopped: {why})")),
            },
            Err(error) => screen.dim(&format!("(not stopped: {error:#})")),
        }
    }

    /// The scripted lines ask for a tool and a stop; a real model might call no tool, or finish
    /// before the stop.
    fn expect(&mut self, engine: Engine) {
        let turns = &self.dialog.turns;
        if turns.len() != 3 || turns.iter().any(|turn| turn.end == AnswerEnd::Failed) {
            self.dialog.missing.push("three lines were to be taken and answered".to_owned());
        }
        self.dialog.has_all_kinds = engine == Engine::Script;
    }
}

/// The received part of an answer.
struct AnswerView {
    accepted: api::AcceptedTurn,
    turn: DialogTurn,
    /// The tool call whose arguments are arriving.
    call: Option<String>,
    /// The kind of the last piece.
    last: Option<PieceKind>,
    pieces: usize,
    is_stopped: bool,
}

impl AnswerView {
    /// Shows an event; true if the answer has ended.
    fn show(&mut self, seen: SubscriberEvent, screen: &mut Screen) -> bool {
        match seen {
            SubscriberEvent::Piece { message, kind, text } if message == self.accepted.answer => {
                self.piece(kind, &text, screen);
                false
            }
            SubscriberEvent::Complete { message } if message == self.accepted.answer => {
                screen.end_pieces();
                if self.is_stopped {
                    screen.dim("(stopped: what you saw is kept, and marked)");
                }
                self.turn.end = if self.is_stopped { AnswerEnd::Stopped } else { AnswerEnd::Complete };
                true
            }
            SubscriberEvent::Failed { message, code, text } if message == self.accepted.answer => {
                screen.end_pieces();
                screen.text(&format!("The answer failed ({code}): {text}"));
                screen.dim(
                    "The input is kept as a failed turn and can be retried; nothing of it is in the history.",
                );
                true
            }
            SubscriberEvent::Reset { message } if message == self.accepted.answer => {
                self.turn.text.clear();
                screen.end_pieces();
                screen.dim("(another attempt: the answer starts again)");
                false
            }
            SubscriberEvent::Restart => {
                self.turn.text.clear();
                screen.end_pieces();
                screen.dim("(the stream begins again)");
                false
            }
            SubscriberEvent::Broken(why) => {
                screen.end_pieces();
                screen.dim(&format!("(the stream broke: {why}; reading on behind the last piece)"));
                false
            }
            SubscriberEvent::Opened | SubscriberEvent::Piece { .. } | SubscriberEvent::Complete { .. } => {
                false
            }
            SubscriberEvent::Failed { .. } | SubscriberEvent::Reset { .. } => false,
        }
    }

    fn piece(&mut self, kind: PieceKind, text: &str, screen: &mut Screen) {
        self.pieces += usize::from(kind == PieceKind::Text);
        if self.last.as_ref().is_some_and(|last| *last != kind) {
            screen.end_pieces();
        }
        match &kind {
            PieceKind::Text => {
                self.turn.text.push_str(text);
                screen.piece(Style::Plain, text);
            }
            PieceKind::Reasoning => screen.piece(Style::Dim, text),
            PieceKind::Call { id, tool } => {
                if self.call.as_ref() != Some(id) {
                    screen.piece(Style::Dim, &format!("  tool {tool} "));
                    self.call = Some(id.clone());
                }
                screen.piece(Style::Dim, text);
            }
            PieceKind::Result { tool } => {
                let start = if self.last.as_ref() == Some(&kind) { "" } else { &format!("  {tool} gives ") };
                let shown: String = text.chars().take(RESULT_CHARS).collect();
                screen.piece(Style::Dim, &format!("{start}{shown}"));
            }
        }
        self.last = Some(kind);
    }
}

fn command(line: Line) -> LineCommand {
    let Line::Text(text) = line else { return LineCommand::Quit };
    match text.trim() {
        "" => LineCommand::Nothing,
        "/stop" => LineCommand::Stop,
        "/tasks" => LineCommand::Tasks,
        "/quit" | "/exit" => LineCommand::Quit,
        other if other.starts_with('/') => LineCommand::Unknown(other.to_owned()),
        said => LineCommand::Say(said.to_owned()),
    }
}

fn unknown(name: &str) -> String {
    format!("{name}? There are /stop, /tasks and /quit.")
}

fn no_answer(turn: &str) -> String {
    format!(
        "nothing came of turn {turn} for {ANSWER_TIMEOUT:?}. Look into the logs of the workers and the workflow service: they \
         say whether the turn was requested and taken"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_inputs() {
        let of = |text: &str| command(Line::Text(text.to_owned()));
        assert_eq!(of("  "), LineCommand::Nothing);
        assert_eq!(of(" /stop "), LineCommand::Stop);
        assert_eq!(of("/tasks"), LineCommand::Tasks);
        assert_eq!(of("/quit"), LineCommand::Quit);
        assert_eq!(of("/stpo"), LineCommand::Unknown("/stpo".into()));
        assert_eq!(of(" what is /stop? "), LineCommand::Say("what is /stop?".into()));
        assert_eq!(command(Line::End), LineCommand::Quit);
    }
}
