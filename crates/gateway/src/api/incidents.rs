//! Incidents: what stores and streams that went back in time have lost.

use axum::http::HeaderMap;
use axum::response::Response;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{JsonBody, MaxBodySize};
use http_server::extract::query::{self, QueryParams};
use model::{BUCKETS, PartitionId};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::IncidentRow;
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::app::request_context::RequestContext;
use crate::commands::control;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::GATEWAY;

pub(crate) fn operations() -> Vec<Operation> {
    let incident = json!({
        "partition": 3, "kind": "entries_gone", "stream": "7f3a", "first_seq": 41, "last_seq": 57,
        "detail": "the stream has lost entries that were not read", "detected_at": "2026-11-22T11:49:44Z",
        "acknowledged_at": null, "acknowledged_by": null,
    });
    vec![
        Operation::get(
            "/v1/incidents",
            "listIncidents",
            "List incidents: data lost when a store or a stream went back in time",
            list,
        )
        .tag(GATEWAY)
        .description("Without `all`, only unacknowledged incidents.")
        .scope(Scope::ReadFleet)
        .query::<IncidentsQuery>()
        .response::<IncidentsPage>(
            200,
            "Incidents, newest first",
            json!({ "incidents": [incident], "has_more": false }),
        )
        .errors(&[ErrorCode::DefaultTenantOnly, ErrorCode::InvalidLimit]),
        Operation::post(
            "/v1/incidents/acknowledge",
            "acknowledgeIncidents",
            "Acknowledge incidents",
            acknowledge,
        )
        .tag(GATEWAY)
        .description("The worker that owns the partition becomes ready again.")
        .scope(Scope::OperateFleet)
        .actor_header()
        .body::<AcknowledgeBody>(json!({ "partition": "3" }))
        .response::<Acknowledged>(
            200,
            "The number of newly acknowledged incidents",
            json!({ "acknowledged": 1 }),
        )
        .errors(&[ErrorCode::DefaultTenantOnly]),
    ]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct IncidentsQuery {
    /// Whether to include acknowledged incidents.
    #[serde(default)]
    all: bool,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// Incidents, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct IncidentsPage {
    incidents: Vec<IncidentView>,
    /// Whether there are more than the limit. Acknowledged incidents leave the list, and the next
    /// ones follow.
    has_more: bool,
}

/// Data lost when a store or a stream went back in time.
#[derive(Serialize, ToSchema)]
pub(crate) struct IncidentView {
    partition: u16,
    /// `store_stepped_back`, `entries_gone`, `stream_parted` or `stream_renewed`.
    kind: String,
    /// The stream to which the sequence numbers belong.
    stream: String,
    first_seq: u64,
    /// Null: the end of the stream at that time is unknown.
    #[schema(required)]
    last_seq: Option<u64>,
    /// What happened, as readable text.
    detail: String,
    #[schema(value_type = schemas::TimestampSchema)]
    detected_at: String,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    acknowledged_at: Option<String>,
    #[schema(required)]
    acknowledged_by: Option<String>,
}

/// The incidents to acknowledge.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AcknowledgeBody {
    /// The number of a partition, or `all`.
    #[schema(pattern = "^(all|[0-9]{1,4})$")]
    partition: String,
}

impl MaxBodySize for AcknowledgeBody {
    const MAX_BYTES: usize = 1 << 10;
}

/// The number of newly acknowledged incidents.
#[derive(Serialize, ToSchema)]
pub(crate) struct Acknowledged {
    acknowledged: u64,
}

impl From<IncidentRow> for IncidentView {
    fn from(row: IncidentRow) -> Self {
        let (acknowledged_at, acknowledged_by) = row.acknowledged.unzip();
        Self {
            partition: row.partition.0,
            kind: row.kind,
            stream: row.incarnation,
            first_seq: row.first.0,
            last_seq: row.last.map(|last| last.0),
            detail: row.detail,
            detected_at: row.detected_at,
            acknowledged_at,
            acknowledged_by,
        }
    }
}

/// Partitions hold the data of all tenants.
const WHAT: &str = "incidents";

pub(crate) async fn list(
    ctx: RequestContext,
    QueryParams(query): QueryParams<IncidentsQuery>,
) -> Result<Response, Problem> {
    ctx.check_operates_installation(WHAT)?;
    let limit = query::limit(query.limit.as_deref())?;
    let mut rows = ctx.store()?.incidents(query.all, limit + 1).await?;
    let has_more = query::has_more(&mut rows, limit);
    Ok(json_no_store(IncidentsPage {
        incidents: rows.into_iter().map(IncidentView::from).collect(),
        has_more,
    }))
}

/// The partition with this number. It need not exist now: its incidents may be older than the
/// present number of partitions.
fn partition(number: &str) -> Result<PartitionId, Problem> {
    let known = number.parse().ok().filter(|number| *number < BUCKETS);
    known.map(PartitionId).ok_or_else(|| {
        let last = BUCKETS - 1;
        Problem::new(ErrorCode::InvalidBody, format!("partition must be a number from 0 to {last}, or `all`"))
    })
}

pub(crate) async fn acknowledge(
    ctx: RequestContext,
    headers: HeaderMap,
    JsonBody(body): JsonBody<AcknowledgeBody>,
) -> Result<Response, Problem> {
    ctx.check_operates_installation(WHAT)?;
    let actor = ctx.actor(&headers)?;
    let partition = match body.partition.as_str() {
        "all" => None,
        number => Some(partition(number)?),
    };
    let acknowledged = ctx.store()?.acknowledge_incidents(partition, &control::new_id()?, &actor).await?;
    tracing::info!(acknowledged, actor, "incidents were acknowledged");
    Ok(json_no_store(Acknowledged { acknowledged }))
}
