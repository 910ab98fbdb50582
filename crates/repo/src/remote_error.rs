//! Errors of stores of objects: their kinds, short texts without signatures, and what to do.
//!
//! The crate `object_store` keeps the answers of a store in the texts of its errors only. What a text has besides the code
//! and the message of the store (request IDs, strings to sign) is left out.

use std::error::Error as StdError;

use blk::{Errno, Error, ErrorKind};
use object_store::client::{HttpError, HttpErrorKind};

/// Characters of a store's message that are kept.
const MESSAGE_CHARS: usize = 240;
/// Codes of a store that has no decision yet: another creation of the same name is under way.
const UNDECIDED: [&str; 2] = ["ConditionalRequestConflict", "OperationAborted"];
/// Codes of objects that do not exist.
const MISSING: [&str; 4] = ["NoSuchKey", "NoSuchVersion", "BlobNotFound", "ResourceNotFound"];
/// Parts of the codes of stores that are full.
const FULL: [&str; 5] = ["QuotaExceeded", "StorageFull", "InsufficientStorage", "QuotaExceeds", "NoSpace"];
/// Requests for the credentials of a virtual machine, which are the last resort.
const METADATA: [&str; 2] = ["/latest/api/token", "/latest/meta-data"];

const CREDENTIALS: &str = "look at the credentials in the environment, and at what they permit";
const REGION: &str = "set the region and the endpoint of the bucket, for S3 AWS_REGION and AWS_ENDPOINT";
const NO_CREDENTIALS: &str =
    "the environment has no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
const LATER: &str = "the store is overloaded or down: try again later";
const CONDITIONAL: &str = "the store must create objects only if their names are free";

/// An answer of a store, as the text of an error has it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    /// Status of HTTP: `403 Forbidden`.
    status: String,
    /// The store's code: `AccessDenied`. Empty if there is none.
    code: String,
    /// For people; may be empty.
    message: String,
}

impl Answer {
    fn of(text: &str) -> Option<Answer> {
        let (status, body) = match (text.split_once("status code: "), text.split_once("error response: ")) {
            (Some((_, rest)), _) => rest.split_once(": ").unwrap_or((rest, "")),
            (None, Some((_, body))) => ("200 OK", body),
            (None, None) => return Answer::of_removal(text),
        };
        let (code, message) = match (element(body, "Code"), element(body, "Message")) {
            (Some(code), message) => (code, message.unwrap_or_default()),
            // Of a proxy, for example.
            (None, _) if body.trim_start().starts_with(['<', '{']) => ("", "a page without a code"),
            (None, _) => ("", body),
        };
        Some(Answer { status: status.trim().into(), code: shortened(code), message: shortened(message) })
    }

    /// Reads the error of one object in the answer to a request that removes several.
    fn of_removal(text: &str) -> Option<Answer> {
        let (text, code) = text.strip_suffix(')')?.rsplit_once(" (code: ")?;
        let message = text.rsplit_once(": ").map_or("", |(_, message)| message);
        Some(Answer { status: "200 OK".into(), code: shortened(code), message: shortened(message) })
    }

    fn kind_and_hint(&self) -> (ErrorKind, &'static str) {
        if FULL.iter().any(|part| self.code.contains(part)) {
            return (ErrorKind::NoSpace, "");
        }
        match (&*self.code, self.status_number()) {
            ("NoSuchBucket" | "ContainerNotFound", _) => {
                (ErrorKind::Refused, "make the bucket first, or correct its name")
            }
            ("InvalidBucketName" | "InvalidResourceName", _) => {
                (ErrorKind::Invalid, "correct the name of the bucket")
            }
            ("RequestTimeTooSkewed", _) => {
                (ErrorKind::Refused, "the clock of this host differs from the store's: set it")
            }
            ("InvalidAccessKeyId" | "XAdminUserNotFound", _) => {
                (ErrorKind::Refused, "the store does not have the key in AWS_ACCESS_KEY_ID: correct it")
            }
            ("SignatureDoesNotMatch", _) => {
                (ErrorKind::Refused, "AWS_SECRET_ACCESS_KEY is not the secret of this key: correct it")
            }
            ("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired", _) => {
                (ErrorKind::Refused, "the session token is not valid any more: get new credentials")
            }
            (
                "AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraintException",
                _,
            ) => (ErrorKind::Refused, REGION),
            ("NotImplemented", _) | (_, 501) => (ErrorKind::Unsupported, CONDITIONAL),
            (code, _) if UNDECIDED.contains(&code) => {
                (ErrorKind::Io, "other requests for this object do not end: try again later")
            }
            // Other codes are not taken for a missing object: it could be the end of a log. An answer to HEAD has no code.
            (code, 404) if MISSING.contains(&code) => (ErrorKind::NotFound, ""),
            ("", 404) if self.message.is_empty() => (ErrorKind::NotFound, ""),
            (_, 404) => (ErrorKind::Refused, "this is no answer of a store of objects: correct the endpoint"),
            ("AccessDenied" | "AccountProblem" | "AllAccessDisabled", _) | (_, 401 | 403) => {
                (ErrorKind::Refused, CREDENTIALS)
            }
            (_, 409 | 412) => (ErrorKind::Exists, ""),
            (_, 301 | 302 | 307 | 308) => (ErrorKind::Refused, REGION),
            ("SlowDown" | "InternalError" | "ServiceUnavailable" | "ServerBusy", _)
            | (_, 429 | 500..=599) => (ErrorKind::Io, LATER),
            _ => (ErrorKind::Io, ""),
        }
    }

    fn status_number(&self) -> u16 {
        self.status.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    fn text(&self) -> String {
        let parts: Vec<_> =
            [&*self.status, &*self.code].into_iter().filter(|part| !part.is_empty()).collect();
        let colon = if self.message.is_empty() { "" } else { ": " };
        format!("the store answered {}{colon}{}", parts.join(", "), self.message)
    }
}

/// Returns the content of the first element `name`.
fn element<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(content, _)| content)
}

/// Returns a text for people: one line of limited length.
fn shortened(text: &str) -> String {
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (escaped, plain) in
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&#39;", "'"), ("&amp;", "&")]
    {
        text = text.replace(escaped, plain);
    }
    text.retain(|c| !c.is_control());
    match text.char_indices().nth(MESSAGE_CHARS) {
        Some((end, _)) => format!("{}...", text[..end].trim_end()),
        None => text.trim_end_matches(['.', ' ']).to_owned(),
    }
}

fn chain(e: &object_store::Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(Some(e as &(dyn StdError + 'static)), |&e| e.source())
}

/// Returns whether the same request may succeed, and the crate does not repeat it by itself: no answer came, although it
/// may have been carried out, or the store has no decision yet.
pub(crate) fn may_pass(e: &object_store::Error) -> bool {
    if let Some(failed) = chain(e).find_map(|e| e.downcast_ref::<HttpError>()) {
        let is_request_invalid =
            chain(e).any(|e| e.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_builder));
        return !is_request_invalid && !matches!(failed.kind(), HttpErrorKind::Connect);
    }
    Answer::of(&e.to_string()).is_some_and(|answer| UNDECIDED.contains(&&*answer.code))
}

/// Returns whether an object of this name exists, by the error of its creation.
pub(crate) fn is_taken(e: &object_store::Error) -> bool {
    use object_store::Error as E;
    matches!(e, E::AlreadyExists { .. } | E::Precondition { .. } | E::NotModified { .. }) && !may_pass(e)
}

/// Returns whether there is no object of this name. A bucket that is missing is another error.
pub(crate) fn is_missing(e: &object_store::Error) -> bool {
    matches!(e, object_store::Error::NotFound { .. }) && error("", e).kind == ErrorKind::NotFound
}

/// Returns the error of settings with which no request can be made.
pub(crate) fn invalid_settings(place: &str, e: &object_store::Error) -> Error {
    let last = chain(e).last().map(ToString::to_string).unwrap_or_default();
    Error::invalid(place, format!("{}; correct the variables in the environment", shortened(&last)))
}

/// Returns the error of a request, with what to do.
pub(crate) fn error(place: &str, e: &object_store::Error) -> Error {
    use object_store::Error as E;
    let text = e.to_string();
    let last = chain(e).last().map(ToString::to_string).unwrap_or_default();
    let (kind, cause, hint) = if METADATA.iter().any(|part| text.contains(part)) {
        (ErrorKind::Refused, format!("no credentials: {}", shortened(&last)), NO_CREDENTIALS)
    } else if chain(e).any(|e| e.is::<HttpError>()) {
        let (kind, hint) = unanswered(&last);
        (kind, format!("{}{}", attempts(&text), shortened(&last)), hint)
    } else if text.contains("redirect without LOCATION") {
        (ErrorKind::Refused, "the store redirects without stating where".into(), REGION)
    } else if let Some(answer) = Answer::of(&text) {
        let (kind, hint) = answer.kind_and_hint();
        (kind, answer.text(), hint)
    } else {
        let (kind, hint) = match e {
            E::NotFound { .. } => (ErrorKind::NotFound, ""),
            E::AlreadyExists { .. } | E::Precondition { .. } => (ErrorKind::Exists, ""),
            E::PermissionDenied { .. } => (ErrorKind::Refused, "give the folder to the user of this program"),
            E::NotSupported { .. } | E::NotImplemented { .. } => (ErrorKind::Unsupported, CONDITIONAL),
            _ => (kind_of_folder(e), ""),
        };
        (kind, shortened(&text), hint)
    };
    let semicolon = if hint.is_empty() { "" } else { "; " };
    Error::new(kind, place, format!("{cause}{semicolon}{hint}"))
}

/// Returns the kind of an error of the file system.
fn kind_of_folder(e: &object_store::Error) -> ErrorKind {
    let number = chain(e).find_map(|e| e.downcast_ref::<std::io::Error>()?.raw_os_error());
    number.map_or(ErrorKind::Io, |number| Errno(number).kind())
}

/// Returns what to do after a request without an answer, of which `last` is the cause.
fn unanswered(last: &str) -> (ErrorKind, &'static str) {
    if last.contains("scheme is not allowed") {
        let hint =
            "use an endpoint with https://, or set AWS_ALLOW_HTTP=true and send all requests unencrypted";
        return (ErrorKind::Invalid, hint);
    }
    if last.contains("certificate") {
        let hint =
            "add the authority of the store's certificate to those of this host, or correct the endpoint";
        return (ErrorKind::Refused, hint);
    }
    (ErrorKind::Io, "look at the endpoint in the environment, and at the network")
}

/// Returns whom a request was sent to and how often, by the text that the crate makes of it.
fn attempts(text: &str) -> String {
    let Some((_, rest)) = text.rsplit_once("Error performing ") else { return String::new() };
    let mut words = rest.split(' ').skip(1);
    let url = words.next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return String::new() };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let times = rest_between(text, ", after ", " retries,").filter(|times| times.parse::<u32>().is_ok());
    let times = times.map(|times| format!(", after {times} retries")).unwrap_or_default();
    format!("no answer from {scheme}://{host}{times}: ")
}

fn rest_between<'t>(text: &'t str, before: &str, after: &str) -> Option<&'t str> {
    text.split_once(before)?.1.split_once(after).map(|(found, _)| found)
}

#[cfg(test)]
mod tests {
    use object_store::Error as E;

    use super::*;

    const FORBIDDEN: &str = "Error performing PUT http://h/b/log/1 in 2.1ms - Server returned non-2xx status code: 403 Forbidden: ";

    fn denied(body: &str) -> Error {
        error(
            "s3://b/log/1",
            &E::PermissionDenied { path: "log/1".into(), source: format!("{FORBIDDEN}{body}").into() },
        )
    }

    fn generic(text: &str) -> Error {
        error("s3://b", &E::Generic { store: "S3", source: text.into() })
    }

    #[test]
    fn signatures_and_request_ids_are_left_out() {
        let e = denied(
            "<?xml version=\"1.0\"?>\n<Error><Code>SignatureDoesNotMatch</Code><Message>The request signature we calculated \
             does not match.</Message><AWSAccessKeyId>AKID</AWSAccessKeyId><StringToSign>AWS4-HMAC-SHA256\nx</StringToSign>\
             <SignatureProvided>0123abcd</SignatureProvided><RequestId>R1</RequestId></Error>",
        );
        assert_eq!(e.kind, ErrorKind::Refused);
        assert_eq!(
            e.to_string(),
            "s3://b/log/1: the store answered 403 Forbidden, SignatureDoesNotMatch: The request signature we calculated does \
             not match; AWS_SECRET_ACCESS_KEY is not the secret of this key: correct it"
        );
    }

    #[test]
    fn codes_have_their_kinds_and_hints() {
        let cases = [
            ("404 Not Found", "NoSuchBucket", ErrorKind::Refused, "make the bucket first"),
            ("404 Not Found", "NoSuchKey", ErrorKind::NotFound, ""),
            ("403 Forbidden", "RequestTimeTooSkewed", ErrorKind::Refused, "the clock of this host"),
            ("403 Forbidden", "AccessDenied", ErrorKind::Refused, "what they permit"),
            ("400 Bad Request", "ExpiredToken", ErrorKind::Refused, "get new credentials"),
            ("400 Bad Request", "AuthorizationHeaderMalformed", ErrorKind::Refused, "AWS_REGION"),
            ("400 Bad Request", "InvalidBucketName", ErrorKind::Invalid, "correct the name"),
            ("403 Forbidden", "QuotaExceeded", ErrorKind::NoSpace, ""),
            ("507 Insufficient Storage", "XMinioStorageFull", ErrorKind::NoSpace, ""),
            ("501 Not Implemented", "NotImplemented", ErrorKind::Unsupported, "only if their names are free"),
            ("503 Slow Down", "SlowDown", ErrorKind::Io, "try again later"),
        ];
        for (status, code, kind, hint) in cases {
            let e = generic(&format!(
                "Error performing list request: Error performing GET http://h/b?list-type=2 in 1ms, after 12 retries, max_retries: \
                 12, retry_timeout: 170s  - Server returned non-2xx status code: {status}: <Error><Code>{code}</Code></Error>"
            ));
            assert_eq!(e.kind, kind, "{e}");
            assert!(e.cause.contains(code) && e.cause.contains(hint) && !e.cause.contains("page"), "{e}");
        }
    }

    #[test]
    fn a_page_that_is_no_answer_of_a_store_does_not_mean_that_an_object_is_missing() {
        let not_found = |body: &str| {
            let text = format!(
                "Error performing GET http://h/b/x in 1ms - Server returned non-2xx status code: 404 Not Found: {body}"
            );
            error("s3://b/x", &E::NotFound { path: "x".into(), source: text.into() })
        };
        assert_eq!(not_found("").kind, ErrorKind::NotFound);
        assert_eq!(not_found("<html><body>Log in</body></html>").kind, ErrorKind::Refused);
        assert_eq!(not_found("<Error><Code>UserNotFound</Code></Error>").kind, ErrorKind::Refused);
        assert_eq!(not_found("<Error><Code>BlobNotFound</Code></Error>").kind, ErrorKind::NotFound);
        let e = not_found("404 page not found\n");
        assert_eq!(e.kind, ErrorKind::Refused);
        assert!(
            e.cause.ends_with(
                "404 page not found; this is no answer of a store of objects: correct the endpoint"
            ),
            "{e}"
        );
    }

    #[test]
    fn a_creation_without_a_decision_is_none_of_an_existing_object() {
        let conflict = |code: &str| E::AlreadyExists {
            path: "x".into(),
            source: format!(
                "- Server returned non-2xx status code: 409 Conflict: <Error><Code>{code}</Code></Error>"
            )
            .into(),
        };
        assert!(is_taken(&conflict("BlobAlreadyExists")) && !may_pass(&conflict("BlobAlreadyExists")));
        for code in UNDECIDED {
            assert!(may_pass(&conflict(code)) && !is_taken(&conflict(code)));
            assert_eq!(error("p", &conflict(code)).kind, ErrorKind::Io);
        }
    }

    #[test]
    fn errors_of_removals_have_their_codes() {
        let e = generic("DeleteObjects request failed for key packs/1: Access Denied. (code: AccessDenied)");
        assert_eq!(
            (e.kind, &*e.cause),
            (
                ErrorKind::Refused,
                &*format!("the store answered 200 OK, AccessDenied: Access Denied; {CREDENTIALS}")
            )
        );
    }

    #[test]
    fn long_messages_are_cut() {
        let e = denied(&format!(
            "<Error><Code>AccessDenied</Code><Message>{}</Message></Error>",
            "\u{e4} &lt;\n".repeat(1000)
        ));
        assert!(e.cause.chars().count() < 450 && !e.cause.contains('\n'), "{e}");
    }

    #[test]
    fn endpoints_are_named_without_their_credentials() {
        let text = "Error performing PUT https://user:word@host:9000/b?x=1 in 1s, after 3 retries, max_retries: 12, retry_timeout: 170s  - HTTP";
        assert_eq!(attempts(text), "no answer from https://host:9000, after 3 retries: ");
        assert_eq!(attempts(&format!("Error performing list request: {text}")), attempts(text));
        assert_eq!(attempts("Error performing PUT REDACTED in 1s - HTTP"), "");
    }
}
