//! One operation: its route and its description.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use auth::Permission as Scope;
use axum::handler::Handler;
use axum::routing::{self, MethodRouter};
use http_server::error::ErrorCode;
use http_server::extract::body::JSON_LINES;
use http_server::extract::headers;
use protocols::{ErrorForm, RequestBody};
use serde_json::{Map, Value, json};
use utoipa::openapi::path::ParameterIn;
use utoipa::{IntoParams, ToSchema};

use crate::app::authorize::Scopes;
use crate::app::state::AppState;
use crate::openapi::error_codes;
use crate::openapi::events::Stream;
use crate::openapi::refusals::Refusals;
use crate::openapi::response::{self, JSON, ResponseSpec};
use crate::openapi::schemas;

/// The name of the one security scheme.
pub(crate) const BEARER: &str = "bearer";

/// Describes what a permission allows.
pub(crate) fn meaning(scope: Scope) -> &'static str {
    match scope {
        Scope::ReadThreads => "read threads: history, batches, contexts, failed turns, events",
        Scope::WriteThreads => "create threads, send messages, stop turns",
        Scope::ReadAgents => "read agents and their queues",
        Scope::SendTasks => "send tasks to agents",
        Scope::OperateAgents => {
            "pause and resume agents; edit, retry and drop pending or failed tasks and turns"
        }
        Scope::ConfigureAgents => "create agents and change their settings",
        Scope::ReadAudit => "read the audit log",
        Scope::ReadDeadLetters => "read dead letters, including their payloads",
        Scope::OperateDeadLetters => "replay and drop dead letters",
        Scope::ReadFleet => "read incidents of the installation; requires a credential of the default tenant",
        Scope::OperateFleet => {
            "acknowledge incidents, rotate the keys with which the fleet signs; requires a credential of the default tenant"
        }
        Scope::EraseData => {
            "erase threads and users, and read the receipts; erase and reopen tenants with a credential of the default tenant"
        }
        Scope::ExportData => "export all threads of the tenant",
        Scope::ImportData => "import threads into the tenant",
        Scope::ManageKeys => "create, list, rotate and revoke API keys",
        Scope::ReadReasoning => "read reasoning sessions",
        Scope::WriteReasoning => "create reasoning sessions, append to them, compress and undo",
        Scope::ReadMemory => "search the memory of an agent over MCP",
        Scope::WriteMemory => "add, correct and delete facts in the memory of an agent over MCP",
    }
}

/// Schemas by their names.
pub(crate) type Schemas = BTreeMap<String, Value>;

/// See the module.
pub(crate) struct Operation {
    method: &'static str,
    path: &'static str,
    id: &'static str,
    tag: &'static str,
    summary: &'static str,
    description: Option<&'static str>,
    /// See [`Operation::without_handler`].
    handler: Option<MethodRouter<AppState>>,
    scope: Option<Scope>,
    is_opened_by_tickets: bool,
    parameters: Vec<Value>,
    body: Option<RequestBodySpec>,
    answers: Vec<ResponseSpec>,
    codes: BTreeSet<ErrorCode>,
    errors: ErrorForm,
    schemas: Vec<(String, Value)>,
}

struct RequestBodySpec {
    content_type: &'static str,
    schema: Value,
    example: Value,
    is_required: bool,
}

/// Operations by their methods.
macro_rules! operation_of {
    ($($method:ident),+) => {$(
        pub(crate) fn $method<T: 'static>(
            path: &'static str,
            id: &'static str,
            summary: &'static str,
            handler: impl Handler<T, AppState>,
        ) -> Self {
            Self::new(stringify!($method), path, id, summary, Some(routing::$method(handler)))
        }
    )+};
}

impl Operation {
    fn new(
        method: &'static str,
        path: &'static str,
        id: &'static str,
        summary: &'static str,
        handler: Option<MethodRouter<AppState>>,
    ) -> Self {
        let operation = Self {
            method,
            path,
            id,
            tag: "",
            summary,
            description: None,
            handler,
            scope: None,
            is_opened_by_tickets: false,
            parameters: Vec::new(),
            body: None,
            answers: Vec::new(),
            codes: BTreeSet::new(),
            errors: ErrorForm::at(path),
            schemas: Vec::new(),
        };
        operation.with_variables()
    }

    /// An operation without its own handler: a probe, or the description itself, which contains all
    /// operations.
    pub(crate) fn without_handler(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new("get", path, id, summary, None)
    }

    operation_of!(get, post, put, patch, delete);

    pub(crate) fn tag(self, tag: &'static str) -> Self {
        Self { tag, ..self }
    }

    pub(crate) fn description(self, description: &'static str) -> Self {
        Self { description: Some(description), ..self }
    }

    /// The scope that a caller needs. Adds the errors of authentication, and of the store and the
    /// streams.
    pub(crate) fn scope(self, scope: Scope) -> Self {
        Self { scope: Some(scope), ..self }.errors(&error_codes::SECURED)
    }

    /// Accepts a ticket in the URL as well.
    pub(crate) fn opened_by_tickets(self) -> Self {
        Self { is_opened_by_tickets: true, ..self }
    }

    /// Adds the codes of errors.
    pub(crate) fn errors(mut self, codes: &[ErrorCode]) -> Self {
        self.codes.extend(codes);
        self
    }

    /// Adds the variable parts of the path.
    fn with_variables(mut self) -> Self {
        let names = self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        for name in names {
            let schema = match name {
                "thread" => self.schema::<schemas::ThreadIdSchema>(),
                // The queues of background work can be inspected and operated like others, but not
                // configured or sent tasks.
                "agent"
                    if self.method == "put"
                        || self.path.contains("/schedules")
                        || self.path.contains("/memory")
                        || self.path.contains("/delayed-tasks")
                        || self.path.ends_with("{agent}/tasks") && self.method == "post" =>
                {
                    self.schema::<schemas::AgentIdSchema>()
                }
                "agent" => self.schema::<schemas::QueueIdSchema>(),
                "task" => self.schema::<schemas::TaskIdSchema>(),
                "turn" => self.schema::<schemas::TurnIdSchema>(),
                "timer" => self.schema::<schemas::FollowUpIdSchema>(),
                "schedule" => self.schema::<schemas::ScheduleNameSchema>(),
                "budget" => self.schema::<schemas::BudgetNameSchema>(),
                "batch" if self.path.ends_with("{batch}") => self.schema::<schemas::BatchNameSchema>(),
                "batch" => self.schema::<schemas::PositionSchema>(),
                "response_id" => self.schema::<schemas::ResponseIdSchema>(),
                "key" => self.schema::<schemas::KeyIdSchema>(),
                "erasure" => self.schema::<schemas::ErasureIdSchema>(),
                "user" => self.schema::<schemas::ErasedUserSchema>(),
                "tenant" => self.schema::<schemas::TenantSchema>(),
                "signing_key" => self.schema::<schemas::SigningKeySchema>(),
                _ => json!({ "type": "string", "minLength": 1 }),
            };
            self.parameters.push(json!({ "name": name, "in": "path", "required": true, "schema": schema }));
        }
        match self.parameters.is_empty() {
            true => self,
            false => self.errors(&[ErrorCode::UnknownAddress]),
        }
    }

    /// The query, as its type reads it.
    pub(crate) fn query<Q: IntoParams>(mut self) -> Self {
        for parameter in Q::into_params(|| Some(ParameterIn::Query)) {
            self.parameters.push(of_query(crate::openapi::schema::written(&parameter)));
        }
        // A parameter refers to its schema by name only, so the schema is added here.
        self.take::<schemas::CommandIdSchema>();
        self.take::<schemas::AgentIdSchema>();
        self.take::<schemas::QueueIdSchema>();
        self.take::<schemas::AgentWaitingSchema>();
        self.take::<schemas::IncompleteSchema>();
        self.take::<schemas::CursorSchema>();
        self.take::<schemas::EventNumber>();
        self.take::<schemas::FollowUpIdSchema>();
        self.take::<schemas::FormatSchema>();
        self.take::<schemas::KeyIdSchema>();
        self.take::<schemas::ErasureIdSchema>();
        self.take::<schemas::ErasureStateSchema>();
        self.take::<schemas::Limit>();
        self.take::<schemas::MarkedTenantSchema>();
        self.take::<schemas::MessageIdSchema>();
        self.take::<schemas::PositionSchema>();
        self.take::<schemas::TaskIdSchema>();
        self.take::<schemas::TaskStatusSchema>();
        self.take::<schemas::TicketSchema>();
        self.take::<schemas::Tokens>();
        self.take::<schemas::TurnIdSchema>();
        self.errors(&[ErrorCode::InvalidQuery])
    }

    fn take<T: ToSchema>(&mut self) {
        self.schema::<T>();
    }

    pub(crate) fn header(mut self, name: &str, description: &str, schema: &Value) -> Self {
        self.parameters
            .push(json!({ "name": name, "in": "header", "description": description, "schema": schema }));
        self
    }

    /// Adds the header that names the actor.
    pub(crate) fn actor_header(self) -> Self {
        let text = format!("The actor to record in the audit log; default `{}`.", headers::DEFAULT_ACTOR);
        let header =
            self.header("X-Antiphon-Actor", &text, &visible(headers::MAX_ACTOR_LEN, "ann@example.org"));
        header.errors(&[ErrorCode::InvalidActor])
    }

    /// Adds the headers of an input. Repeated requests with the same key send the input once.
    pub(crate) fn input_headers(self) -> Self {
        let key = "Repeating a key with the same body returns the same turn; with another body the request is refused.";
        let trace = "Passed with the turn to its workflow, for tracing across services.";
        let most = headers::MAX_HEADER_LEN;
        self.header("Idempotency-Key", key, &visible(most, "0198c4d2-e5f5-7a60"))
            .header("X-Correlation-Id", trace, &visible(most, "trace-17"))
            .errors(&[ErrorCode::InvalidIdempotencyKey, ErrorCode::InvalidCorrelationId])
    }

    /// Adds the header that says what happens to the turn when its client disconnects.
    pub(crate) fn disconnect_header(self) -> Self {
        let text = "Whether the turn goes on or is stopped when the client disconnects from its stream.";
        let schema = json!({ "enum": [headers::CONTINUE, headers::STOP], "default": headers::CONTINUE });
        self.header(headers::ON_DISCONNECT, text, &schema).errors(&[ErrorCode::InvalidOnDisconnect])
    }

    /// Adds the header that tells how far the reader has read.
    pub(crate) fn last_event_id_header(mut self) -> Self {
        let text = "The id of the last event received. Browsers send it automatically. It takes precedence over `after`.";
        let cursor = self.schema::<schemas::CursorSchema>();
        self.header(
            "Last-Event-ID",
            text,
            &json!({ "anyOf": [cursor, { "type": "string", "maxLength": 0 }] }),
        )
    }

    /// Adds the header that names the thread, for a protocol without a field for it.
    pub(crate) fn thread_header(mut self) -> Self {
        let schema = self.schema::<schemas::ThreadIdSchema>();
        self.header("X-Antiphon-Thread", "The thread; takes precedence over `metadata.thread_id`.", &schema)
    }

    /// Adds a JSON body.
    pub(crate) fn body<T: ToSchema>(mut self, example: Value) -> Self {
        let schema = self.schema::<T>();
        self.body = Some(RequestBodySpec { content_type: JSON, schema, example, is_required: true });
        self.errors(&error_codes::BODY)
    }

    /// Adds a JSON body that may be omitted.
    pub(crate) fn optional_body<T: ToSchema>(self, example: Value) -> Self {
        let mut operation = self.body::<T>(example);
        if let Some(body) = &mut operation.body {
            body.is_required = false;
        }
        operation
    }

    /// Adds the body of another protocol.
    pub(crate) fn reads(mut self, request: RequestBody) -> Self {
        for reference in [Self::take::<schemas::ThreadIdSchema>, Self::take::<schemas::AgentIdSchema>] {
            reference(&mut self);
        }
        self.schemas.extend(request.schemas());
        let schema = json!({ "$ref": format!("#/components/schemas/{}", request.name()) });
        let example = request.example();
        self.body = Some(RequestBodySpec { content_type: JSON, schema, example, is_required: true });
        self.errors(&error_codes::PROTOCOL)
    }

    /// Accepts no body, or an empty object.
    pub(crate) fn no_body(mut self) -> Self {
        let schema = json!({ "type": "object", "maxProperties": 0 });
        let example = json!({});
        self.body = Some(RequestBodySpec { content_type: JSON, schema, example, is_required: false });
        self.errors(&[
            ErrorCode::UnexpectedBody,
            ErrorCode::BodyTooLarge,
            ErrorCode::BodyTimeout,
            ErrorCode::IncompleteBody,
        ])
    }

    /// Lines of JSON. They are binary, so that generated clients send them as they are.
    pub(crate) fn lines_body(mut self, example: &str) -> Self {
        let (schema, example) = (json!({ "type": "string", "format": "binary" }), json!(example));
        self.body = Some(RequestBodySpec { content_type: JSON_LINES, schema, example, is_required: true });
        self.errors(&[ErrorCode::UnsupportedMediaType, ErrorCode::BodyTimeout, ErrorCode::IncompleteBody])
    }

    /// Adds a success response.
    pub(crate) fn response<T: ToSchema>(mut self, status: u16, text: &'static str, example: Value) -> Self {
        let schema = self.schema::<T>();
        self.answers.push(ResponseSpec::json(status, text, schema, example));
        self
    }

    /// Adds a success response of another kind.
    pub(crate) fn response_with(mut self, answer: ResponseSpec) -> Self {
        self.answers.push(answer);
        self
    }

    /// Adds a header to the success response that was added last.
    pub(crate) fn with_header(mut self, name: &'static str, text: &'static str, schema: Value) -> Self {
        if let Some(last) = self.answers.last_mut() {
            last.headers
                .insert(name.to_owned(), json!({ "description": text, "required": true, "schema": schema }));
        }
        self
    }

    /// Adds another form to the success response that was added last.
    pub(crate) fn or_as(mut self, kind: &str, schema: Value) -> Self {
        self.answers = match self.answers.pop() {
            Some(last) => self.answers.into_iter().chain([last.or(kind, schema)]).collect(),
            None => self.answers,
        };
        self
    }

    /// Adds a stream of events as another form of the success response that was added last.
    pub(crate) fn or_streams(mut self, events: Stream) -> Self {
        self.schemas.extend(events.schemas());
        if let Some(last) = self.answers.last_mut() {
            last.add_stream(&events);
        }
        self
    }

    /// Adds the schemas to which the events of a stream refer.
    pub(crate) fn with_schemas_of(mut self, events: Stream) -> Self {
        self.schemas.extend(events.schemas());
        self
    }

    /// A reference to the schema of a type.
    pub(crate) fn schema<T: ToSchema>(&mut self) -> Value {
        let name = T::name().into_owned();
        let reference = json!({ "$ref": format!("#/components/schemas/{name}") });
        self.schemas.extend(crate::openapi::schema::schemas_of::<T>());
        reference
    }

    #[cfg(test)]
    pub(crate) fn codes(&self) -> &BTreeSet<ErrorCode> {
        &self.codes
    }

    /// The path, and the handler behind the layer that checks the scope; `None` without a handler.
    pub(crate) fn into_route(self, scopes: &Scopes<'_>) -> Option<(&'static str, MethodRouter<AppState>)> {
        let handler = self.handler?;
        let handler = match self.scope {
            None => handler,
            Some(_) if self.is_opened_by_tickets => scopes.stream(handler),
            Some(scope) => scopes.require(scope, self.errors.error_body(), handler),
        };
        Some((self.path, handler))
    }

    pub(crate) fn path(&self) -> &'static str {
        self.path
    }

    pub(crate) fn method(&self) -> &'static str {
        self.method
    }

    /// Adds the schemas to which the operation refers.
    pub(crate) fn collect_schemas(&self, schemas: &mut Schemas) {
        for (name, schema) in &self.schemas {
            schemas.entry(name.clone()).or_insert_with(|| schema.clone());
        }
        for (name, schema) in response::error_schemas(self.errors) {
            schemas.entry(name).or_insert(schema);
        }
    }

    /// The operation object.
    pub(crate) fn to_json(&self, refusals: &mut Refusals) -> Value {
        let mut object = Map::new();
        object.insert("operationId".to_owned(), json!(self.id));
        object.insert("tags".to_owned(), json!([self.tag]));
        object.insert("summary".to_owned(), json!(self.summary));
        if let Some(text) = self.description {
            object.insert("description".to_owned(), json!(text));
        }
        if !self.parameters.is_empty() {
            object.insert("parameters".to_owned(), json!(self.parameters));
        }
        if let Some(RequestBodySpec { content_type, schema, example, is_required }) = &self.body {
            let content = json!({ *content_type: { "schema": schema, "example": example } });
            object.insert("requestBody".to_owned(), json!({ "required": is_required, "content": content }));
        }
        let mut responses: Map<String, Value> = Map::new();
        for answer in &self.answers {
            responses.insert(answer.status.to_string(), answer.to_json());
        }
        let errors = (self.errors, self.scope.is_some());
        refusals.add_to_operation(errors, &self.codes, &mut object, &mut responses);
        object.insert("responses".to_owned(), Value::Object(responses));
        let scopes = self.scope.map(Scope::scope);
        let security = scopes.map_or(json!([]), |scope| json!([{ BEARER: [scope] }]));
        object.insert("security".to_owned(), security);
        Value::Object(object)
    }
}

/// A parameter of the query: it may be absent, and is never `null`.
fn of_query(mut parameter: Value) -> Value {
    if let Some(object) = parameter.as_object_mut() {
        object.retain(|key, value| key != "required" || *value != json!(false));
    }
    let schema = &mut parameter["schema"];
    let kinds = schema.get_mut("type").and_then(Value::as_array_mut);
    if let Some(kinds) = kinds {
        kinds.retain(|kind| kind != "null");
        schema["type"] = kinds.first().cloned().unwrap_or_default();
    } else if let Some([_, other]) = schema["oneOf"].as_array().map(Vec::as_slice) {
        *schema = other.clone();
    }
    parameter
}

/// A header's text.
fn visible(most: usize, example: &str) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": most, "pattern": "^[!-~]+$", "examples": [example] })
}
