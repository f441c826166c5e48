//! Sets of error codes that many operations share.

use http_server::error::ErrorCode;

/// Codes of every secured operation.
pub(crate) const SECURED: [ErrorCode; 15] = [
    ErrorCode::Unauthenticated,
    ErrorCode::CredentialsUnavailable,
    ErrorCode::InsufficientScope,
    ErrorCode::RateLimited,
    ErrorCode::TooManyRequests,
    ErrorCode::TooManyStreams,
    ErrorCode::TooManyUnknownKeys,
    ErrorCode::InvalidHost,
    ErrorCode::HostNotAllowed,
    ErrorCode::OriginNotAllowed,
    ErrorCode::InvalidId,
    ErrorCode::NotReady,
    ErrorCode::DatabaseUnavailable,
    ErrorCode::InternalError,
    ErrorCode::TenantErased,
];

/// Codes of an operation with a body.
pub(crate) const BODY: [ErrorCode; 7] = [
    ErrorCode::UnsupportedMediaType,
    ErrorCode::BodyTooLarge,
    ErrorCode::BodyTimeout,
    ErrorCode::IncompleteBody,
    ErrorCode::InvalidJson,
    ErrorCode::InvalidBody,
    ErrorCode::InternalError,
];

/// Codes of about every third operation: about its query, actor and limit, NATS, and workers.
pub(crate) const FREQUENT: [ErrorCode; 6] = [
    ErrorCode::InvalidQuery,
    ErrorCode::InvalidActor,
    ErrorCode::InvalidLimit,
    ErrorCode::NatsUnavailable,
    ErrorCode::StreamFull,
    ErrorCode::PartitionUnavailable,
];

/// Codes of an operation that publishes a command.
pub(crate) const PUBLISH: [ErrorCode; 2] = [ErrorCode::NatsUnavailable, ErrorCode::StreamFull];

/// Codes of an operation that takes an input.
pub(crate) const INPUT: [ErrorCode; 5] = [
    ErrorCode::EmptyInput,
    ErrorCode::InvalidContent,
    ErrorCode::InputTooLarge,
    ErrorCode::InvalidMetadata,
    ErrorCode::MetadataTooLarge,
];

/// Codes of an operation that answers with a stream of events.
pub(crate) const STREAM: [ErrorCode; 3] =
    [ErrorCode::TooManySubscribers, ErrorCode::TooManyFeeds, ErrorCode::Draining];

/// Codes of a request of another protocol.
pub(crate) const PROTOCOL: [ErrorCode; 11] = [
    ErrorCode::MissingRequiredParameter,
    ErrorCode::InvalidValue,
    ErrorCode::UnsupportedParameter,
    ErrorCode::NoInput,
    ErrorCode::EmptyInput,
    ErrorCode::NoThread,
    ErrorCode::InvalidJson,
    ErrorCode::UnsupportedMediaType,
    ErrorCode::BodyTooLarge,
    ErrorCode::BodyTimeout,
    ErrorCode::IncompleteBody,
];
