//! What a head must have before anybody looks at what it asks for.

use axum::extract::Request;
use axum::http::{Version, header};

use crate::problem::Problem;

/// Refuses a head that other servers on its way may have read differently. Lengths and encodings of bodies are hyper's to
/// judge: with both a length and chunks it reads chunks, and takes no further request on the connection.
pub(crate) fn check(request: &Request) -> Result<(), Problem> {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    // HTTP/2 has the authority instead.
    let is_named = hosts > 0 || request.version() != Version::HTTP_11;
    match hosts > 1 || !is_named {
        true => Err(Problem::bad_request("invalid_host", "a request must name its host once")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn a_request_names_its_host_once() {
        for (version, hosts, is_fit) in [
            (Version::HTTP_11, 1, true),
            (Version::HTTP_11, 0, false),
            (Version::HTTP_11, 2, false),
            (Version::HTTP_10, 0, true),
            (Version::HTTP_10, 2, false),
            (Version::HTTP_2, 0, true),
            (Version::HTTP_2, 2, false),
        ] {
            let named = (0..hosts).fold(Request::builder(), |named, _| named.header("host", "x"));
            let request = named.version(version).body(Body::empty()).unwrap();
            assert_eq!(check(&request).is_ok(), is_fit, "{version:?} {hosts}");
        }
    }
}
