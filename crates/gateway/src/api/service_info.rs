//! Name and version of the service.

use axum::Json;
use serde::Serialize;
use utoipa::ToSchema;

pub(crate) async fn get() -> Json<ServiceInfo> {
    Json(ServiceInfo { name: "antiphon", version: env!("CARGO_PKG_VERSION") })
}

/// The name and version of the service.
#[derive(Serialize, ToSchema)]
#[schema(as = About)]
pub(crate) struct ServiceInfo {
    name: &'static str,
    version: &'static str,
}
