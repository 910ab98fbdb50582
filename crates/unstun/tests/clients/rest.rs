//! Requests to the API over TCP with curl. Every answer is compared with the API's description.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use serde_json::Value;

use crate::daemon::Datastore;
use crate::programs::try_tool;

pub(crate) fn web(datastore: &Datastore) -> String {
    datastore.json("status")["web"][0].as_str().unwrap().to_owned()
}

pub(crate) fn token(datastore: &Datastore, arguments: &str) -> String {
    datastore.json(&format!("token create {arguments}"))["secret"].as_str().unwrap().to_owned()
}

/// Sends a request with curl, and returns the status and the answer, which is checked. Status 0: there was none.
pub(crate) fn curl(
    web: &str,
    secret: Option<&str>,
    method: &str,
    route: &str,
    options: &[&str],
) -> (u16, Value) {
    let (status, body) = send(web, secret, method, route, options);
    if status != 0 {
        check(web, (method, route), options, (status, &body));
    }
    (status, body)
}

/// The same without the check.
pub(crate) fn send(
    web: &str,
    secret: Option<&str>,
    method: &str,
    route: &str,
    options: &[&str],
) -> (u16, Value) {
    let bearer = secret.map(|secret| format!("Authorization: Bearer {secret}"));
    let url = format!("{web}/api/v1{route}");
    let mut all = vec!["-s", "-w", "\n%{http_code}", "-X", method, &url];
    all.extend(bearer.iter().flat_map(|bearer| ["-H", bearer]));
    all.extend(options);
    let said = String::from_utf8(try_tool("curl", &all).stdout).unwrap();
    let (body, status) = said.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), serde_json::from_str(body).unwrap_or(Value::Null))
}

/// Compares a request and its answer with the description.
pub(crate) fn check(
    web: &str,
    (method, route): (&str, &str),
    options: &[&str],
    (status, body): (u16, &Value),
) {
    let description = Description::of_api(web, options);
    let Some(operation) = description.operation(method, route) else {
        assert!(matches!(status, 404 | 405), "{method} {route} is not described, and was answered: {status}");
        return;
    };
    let mut checked = operation.check(status, body);
    if let Some(at) = options.iter().position(|option| *option == "-d").filter(|_| status < 400) {
        checked = checked.and(operation.check_body(&serde_json::from_str(options[at + 1]).unwrap()));
    }
    checked.unwrap_or_else(|e| panic!("{method} {route}: {status}: {e}\n{body}"));
}

/// The description of the API, as the daemon serves it.
pub(crate) struct Description {
    document: Value,
}

/// An operation of the description.
pub(crate) struct Operation<'a> {
    document: &'a Value,
    pub path: &'a str,
    value: &'a Value,
}

impl Description {
    /// Fetches the description once: all daemons of these tests are of the same program.
    pub(crate) fn of_api(web: &str, options: &[&str]) -> &'static Description {
        static FETCHED: OnceLock<Description> = OnceLock::new();
        FETCHED.get_or_init(|| {
            let url = format!("{web}/api/v1/openapi.json");
            let trust: Vec<&str> = match options.iter().position(|option| *option == "--cacert") {
                Some(at) => options[at..at + 2].to_vec(),
                None => Vec::new(),
            };
            let said = try_tool("curl", &[&["-sf", &url], &trust[..]].concat()).stdout;
            Description { document: serde_json::from_slice(&said).expect("the description is JSON") }
        })
    }

    /// Returns all operations, each as its method and path.
    pub(crate) fn all(&self) -> BTreeSet<String> {
        let paths = self.document["paths"].as_object().unwrap().iter();
        let of_path = |(path, methods): (&String, &Value)| {
            let methods = methods.as_object().unwrap().keys();
            methods.map(|method| format!("{} {path}", method.to_uppercase())).collect::<Vec<_>>()
        };
        paths.flat_map(of_path).collect()
    }

    /// Returns the operation of a request; a path without parameters before one with them.
    pub(crate) fn operation(&self, method: &str, route: &str) -> Option<Operation<'_>> {
        let route = route.split('?').next().unwrap();
        let is_of = |path: &str| {
            let (mut parts, mut others) = (path.split('/'), route.split('/'));
            loop {
                match (parts.next(), others.next()) {
                    (None, None) => return true,
                    (Some(part), Some(other)) if part == other || part.starts_with('{') => {}
                    _ => return false,
                }
            }
        };
        let paths = self.document["paths"].as_object().unwrap();
        let found =
            paths.iter().filter(|(path, _)| is_of(path)).min_by_key(|(path, _)| path.matches('{').count());
        let (path, methods) = found?;
        let value = methods.get(method.to_lowercase())?;
        Some(Operation { document: &self.document, path, value })
    }
}

impl Operation<'_> {
    /// Checks the status and the body of an answer.
    pub(crate) fn check(&self, status: u16, body: &Value) -> Result<(), String> {
        let responses = &self.value["responses"];
        let response = match responses.get(status.to_string()) {
            Some(success) => success,
            None if status >= 400 => &responses["default"],
            None => return Err(format!("status {status} is not described: {responses}")),
        };
        self.matches(&response["content"]["application/json"]["schema"], body)
    }

    /// Checks the body of a request.
    pub(crate) fn check_body(&self, body: &Value) -> Result<(), String> {
        self.matches(&self.value["requestBody"]["content"]["application/json"]["schema"], body)
    }

    fn matches(&self, schema: &Value, value: &Value) -> Result<(), String> {
        if schema.is_null() {
            return Err("there is no schema".to_owned());
        }
        let mut whole = schema.clone();
        whole["components"] = self.document["components"].clone();
        let validator = jsonschema::draft202012::new(&whole).map_err(|e| format!("the schema: {e}"))?;
        validator.validate(value).map_err(|e| format!("{}: {e}", e.instance_path()))
    }
}
