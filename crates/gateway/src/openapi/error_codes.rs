//! Sets of error codes that many operations share.

use http_server::error::ErrorCode;

/// Of every secured operation.
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

/// Of an operation with a body.
pub(crate) const BODY: [ErrorCode; 7] = [
    ErrorCode::UnsupportedMediaType,
    ErrorCode::BodyTooLarge,
    ErrorCode::BodyTimeout,
    ErrorCode::IncompleteBody,
    ErrorCode::InvalidJson,
    ErrorCode::InvalidBody,
    ErrorCode::InternalError,
];

/// Of about every third operation: of the query, the actor and the limit, of NATS, and of workers.
pub(crate) const FREQUENT: [ErrorCode; 6] = [
    ErrorCode::InvalidQuery,
    ErrorCode::InvalidActor,
    ErrorCode::InvalidLimit,
    ErrorCode::NatsUnavailable,
    ErrorCode::StreamFull,
    ErrorCode::PartitionUnavailable,
];

/// Of an operation that publishes a command.
pub(crate) const PUBLISH: [ErrorCode; 2] = [ErrorCode::NatsUnavailable, ErrorCode::StreamFull];

/// Of an operation that takes an input.
pub(crate) const INPUT: [ErrorCode; 5] = [
    ErrorCode::EmptyInput,
    ErrorCode::InvalidContent,
    ErrorCode::InputTooLarge,
    ErrorCode::InvalidMetadata,
    ErrorCode::MetadataTooLarge,
];

/// Of an operation that answers with a stream of events.
pub(crate) const STREAM: [ErrorCode; 3] =
    [ErrorCode::TooManySubscribers, ErrorCode::TooManyFeeds, ErrorCode::Draining];

/// Of a request of another protocol.
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
