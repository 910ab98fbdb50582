//! The description of the API, which needs no token.

use std::sync::LazyLock;

use axum::Router;
use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

use crate::access::rights;

/// The same for all: it depends on the version alone.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let document = api::openapi::document(env!("CARGO_PKG_VERSION"), |operation| {
        let method = Method::from_bytes(operation.method.as_bytes()).unwrap_or_default();
        let right = rights::needed(&method, operation.path);
        operation.summary = format!("{}; role {}", right.operation, right.role.as_str());
    });
    document.to_string()
});

pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/openapi.json", get(async || ([(CONTENT_TYPE, "application/json")], DOCUMENT.as_str())))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::access::rights::RIGHTS;

    /// Those of the table of rights are those that the sources declare.
    #[test]
    fn the_document_has_every_route_and_method() {
        let document: Value = serde_json::from_str(&DOCUMENT).unwrap();
        let mut described = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                described.insert(format!("{} {path}", method.to_uppercase()));
            }
        }
        let api = RIGHTS.iter().filter(|right| right.route != "/metrics");
        assert_eq!(described, api.map(|right| format!("{} {}", right.method, right.route)).collect());
    }
}
