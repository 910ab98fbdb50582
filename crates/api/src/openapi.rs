//! The description of the API as OpenAPI 3.1, made from the routes and from the types of their bodies and answers.

use std::collections::BTreeSet;

use jiff::Timestamp;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::error::ErrorBody;
use crate::limits::VmLimits;
use crate::name::{DatastoreName, PolicyName, SnapshotRef, TokenName, VmName};
use crate::routes::with_routes;
use crate::*;

/// Path of the schemas inside the document.
const SCHEMAS: &str = "/components/schemas";
const REFERENCE: &str = "#/components/schemas/";
/// What is added to the name of a body's schema where an answer has another one of the same name: an answer has all fields,
/// and a body may leave out those with a default.
const OF_BODY: &str = "Body";

/// Lists of which a client may ask for a part.
const IN_PARTS: [&str; 3] = ["/vms", "/jobs", "/vms/{vm}/events"];

/// A route with its schemas.
pub struct Operation {
    pub method: &'static str,
    /// Path under `/api/v1`, with parameters in braces.
    pub path: &'static str,
    name: &'static str,
    /// Status of success.
    status: u16,
    parameters: Vec<Value>,
    body: Option<Schema>,
    answer: Schema,
    /// Of the answer, if it is not JSON.
    media_type: &'static str,
    /// For people.
    pub summary: String,
}

/// The generators of the schemas: of answers, and of bodies.
struct Generators {
    answers: SchemaGenerator,
    bodies: SchemaGenerator,
}

impl Generators {
    fn new() -> Generators {
        let settings = || SchemaSettings::draft2020_12().with(|s| s.definitions_path = SCHEMAS.into());
        Generators {
            answers: settings().for_serialize().into_generator(),
            bodies: settings().for_deserialize().into_generator(),
        }
    }
}

macro_rules! status {
    () => {
        200
    };
    ($status:literal) => {
        $status
    };
}

/// Defines the function that returns all routes of the table.
macro_rules! operations {
    ($($method:ident $path:literal => $name:ident($($argument:ident: $type:ty),*) -> $answer:ty
        $(as $status:literal)? $(, $body:ty: $value:expr)?;)*) => {
        fn operations(of: &mut Generators) -> Vec<Operation> {
            vec![$({
                let arguments: Vec<(&str, Schema)> =
                    vec![$((stringify!($argument), of.bodies.subschema_for::<$type>())),*];
                let body: Option<Schema> = [$(of.bodies.subschema_for::<$body>())?].into_iter().next();
                let (path, parameters) = parameters($path, arguments);
                Operation {
                    method: stringify!($method),
                    path,
                    name: stringify!($name),
                    status: status!($($status)?),
                    parameters,
                    body,
                    answer: of.answers.subschema_for::<$answer>(),
                    media_type: "application/json",
                    summary: String::new(),
                }
            }),*]
        }
    };
}

with_routes!(operations);

/// Returns the path without its query, and the parameters of both.
fn parameters(path: &'static str, arguments: Vec<(&str, Schema)>) -> (&'static str, Vec<Value>) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let all = arguments.into_iter().filter_map(|(name, schema)| {
        let place = format!("{{{name}}}");
        match (path.contains(&place), query.contains(&place)) {
            (true, _) => Some(json!({"name": name, "in": "path", "required": true, "schema": schema})),
            (_, true) => Some(json!({"name": name, "in": "query", "schema": schema})),
            _ => None,
        }
    });
    (path, all.collect())
}

/// Returns the description of the API. `complete` adds to each route what is known of it elsewhere.
pub fn document(version: &str, complete: impl Fn(&mut Operation)) -> Value {
    let mut of = Generators::new();
    let mut operations = operations(&mut of);
    operations.push(event_stream(&mut of));
    let is_list = |one: &&mut Operation| one.method == "GET" && IN_PARTS.contains(&one.path);
    operations.iter_mut().filter(is_list).for_each(add_parts);
    let failure = json!({
        "description": "failure",
        "content": {"application/json": {"schema": of.answers.subschema_for::<ErrorBody>()}},
    });
    let (schemas, renamed) = schemas(of);
    let mut paths = Map::new();
    for mut operation in operations {
        complete(&mut operation);
        let (path, method) = (operation.path, operation.method.to_lowercase());
        paths.entry(path).or_insert_with(|| json!({}))[method] = described(operation, &failure, &renamed);
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "unstun", "version": version},
        "servers": [{"url": "/api/v1"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas,
        },
    })
}

fn add_parts(list: &mut Operation) {
    let limit = json!({"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1},
        "description": "Maximum number of entries. An answer with fewer is the last part."});
    list.parameters.push(limit);
    if list.parameters.iter().all(|parameter| parameter["name"] != "after") {
        let key = if list.path == "/jobs" { "integer" } else { "string" };
        let after = json!({"name": "after", "in": "query", "schema": {"type": key},
            "description": "Key of the last entry that the client has: its id, or its name."});
        list.parameters.push(after);
    }
}

fn event_stream(of: &mut Generators) -> Operation {
    let id = json!({"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"},
        "description": "Of the last event that the client has; the stream begins after it."});
    let follow = json!({"name": "follow", "in": "query", "schema": {"type": "boolean", "default": true},
        "description": "Whether the stream continues with new events after those that the client does not have."});
    Operation {
        method: "GET",
        path: "/events",
        name: "event_stream",
        status: 200,
        parameters: vec![id, follow],
        body: None,
        // Each `data` of the stream.
        answer: of.answers.subschema_for::<Event>(),
        media_type: "text/event-stream",
        summary: String::new(),
    }
}

fn described(operation: Operation, failure: &Value, renamed: &BTreeSet<String>) -> Value {
    let Operation { name, status, parameters, body, answer, media_type, summary, path, .. } = operation;
    let group = path.split('/').nth(1).unwrap_or_default();
    let mut value = json!({
        "operationId": name,
        "summary": summary,
        "tags": [group],
        "parameters": parameters,
        "responses": {
            status.to_string(): {"description": "success", "content": {media_type: {"schema": answer}}},
            "default": failure,
        },
    });
    if let Some(body) = body {
        let mut schema = Value::from(body);
        rename(&mut schema, renamed);
        value["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    value
}

/// Returns the schemas of all types, and the names of those that bodies have under another name.
fn schemas(mut of: Generators) -> (Map<String, Value>, BTreeSet<String>) {
    let (mut all, bodies) = (of.answers.take_definitions(true), of.bodies.take_definitions(true));
    let mut differ: BTreeSet<String> = BTreeSet::new();
    loop {
        let differs = |(name, schema): &(&String, &Value)| {
            let own = all.get(*name).is_some_and(|other| other != *schema);
            !differ.contains(*name) && (own || all.contains_key(*name) && refers(schema, &differ))
        };
        let more: Vec<String> = bodies.iter().filter(differs).map(|(name, _)| name.clone()).collect();
        if more.is_empty() {
            break;
        }
        differ.extend(more);
    }
    for (name, mut schema) in bodies {
        rename(&mut schema, &differ);
        let name = if differ.contains(&name) { name + OF_BODY } else { name };
        all.insert(name, schema);
    }
    (all, differ)
}

/// Returns whether a schema refers to one of `names`.
fn refers(schema: &Value, names: &BTreeSet<String>) -> bool {
    match schema {
        Value::Object(fields) => {
            let own =
                fields.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix(REFERENCE));
            own.is_some_and(|name| names.contains(name)) || fields.values().any(|value| refers(value, names))
        }
        Value::Array(values) => values.iter().any(|value| refers(value, names)),
        _ => false,
    }
}

/// Lets the references to `names` in a body's schema refer to the bodies' own.
fn rename(schema: &mut Value, names: &BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get_mut("$ref")
                && reference.strip_prefix(REFERENCE).is_some_and(|name| names.contains(name))
            {
                reference.push_str(OF_BODY);
            }
            fields.values_mut().for_each(|value| rename(value, names));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| rename(value, names)),
        _ => {}
    }
}
