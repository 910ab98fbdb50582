//! A bucket in memory, with the requests of S3 that a repository uses. Its lists have few objects on a page.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::http::{Request, answer, decoded, error};
use crate::{ACCESS_KEY, BUCKET};

/// Objects on a page of a list.
const PAGE: usize = 3;

#[derive(Default)]
pub(crate) struct MemoryBucket(Mutex<BTreeMap<String, Vec<u8>>>);

impl MemoryBucket {
    pub(crate) fn answer(&self, request: &Request) -> Vec<u8> {
        let credential = format!("Credential={ACCESS_KEY}/");
        if !request.header("authorization").is_some_and(|header| header.contains(&credential)) {
            return error("403 Forbidden", "InvalidAccessKeyId", "The key does not exist in our records.");
        }
        let path = request.target.split('?').next().unwrap_or_default().trim_start_matches('/');
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        if bucket != BUCKET {
            return match &*request.method {
                "HEAD" => answer("404 Not Found", "", b""),
                _ => error("404 Not Found", "NoSuchBucket", "The specified bucket does not exist"),
            };
        }
        let key = decoded(key);
        let mut objects = self.0.lock().unwrap();
        match &*request.method {
            "PUT" if request.header("if-none-match") == Some("*") && objects.contains_key(&key) => {
                error("412 Precondition Failed", "PreconditionFailed", "The object exists")
            }
            "PUT" => {
                objects.insert(key, request.body.clone());
                answer("200 OK", "etag: \"1\"\r\n", b"")
            }
            "POST" => remove(&mut objects, &String::from_utf8_lossy(&request.body)),
            "GET" if key.is_empty() => list(&objects, request),
            "GET" => match objects.get(&key) {
                Some(body) => content(body, request.header("range")),
                None => error("404 Not Found", "NoSuchKey", "The specified key does not exist."),
            },
            "HEAD" if objects.contains_key(&key) => {
                let headers = format!("content-length: {}\r\n{DESCRIPTION}\r\n", objects[&key].len());
                format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{headers}").into_bytes()
            }
            _ => answer("404 Not Found", "", b""),
        }
    }
}

const DESCRIPTION: &str = "etag: \"1\"\r\nlast-modified: Sun, 01 Nov 2026 12:00:00 GMT\r\n";

fn content(body: &[u8], range: Option<&str>) -> Vec<u8> {
    let Some(range) = range else { return answer("200 OK", DESCRIPTION, body) };
    let (first, last) =
        range.strip_prefix("bytes=").and_then(|range| range.split_once('-')).expect("a range");
    let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
    let last = last.min(body.len() - 1);
    let headers = format!("{DESCRIPTION}content-range: bytes {first}-{last}/{}\r\n", body.len());
    answer("206 Partial Content", &headers, &body[first..=last])
}

fn list(objects: &BTreeMap<String, Vec<u8>>, request: &Request) -> Vec<u8> {
    let prefix = request.query("prefix").unwrap_or_default();
    let after = request.query("continuation-token").unwrap_or_default();
    let mut wanted = objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after);
    let page: Vec<_> = wanted.by_ref().take(PAGE).collect();
    let mut text = String::from("<ListBucketResult>");
    for (key, body) in &page {
        text.push_str(&format!(
            "<Contents><Key>{key}</Key><LastModified>2026-11-01T12:00:00.000Z</LastModified><ETag>\"1\"</ETag>\
             <Size>{}</Size></Contents>",
            body.len()
        ));
    }
    match (wanted.next(), page.last()) {
        (Some(_), Some((last, _))) => text.push_str(&format!(
            "<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>"
        )),
        _ => text.push_str("<IsTruncated>false</IsTruncated>"),
    }
    text.push_str("</ListBucketResult>");
    answer("200 OK", "content-type: application/xml\r\n", text.as_bytes())
}

fn remove(objects: &mut BTreeMap<String, Vec<u8>>, wanted: &str) -> Vec<u8> {
    let mut text = String::from("<DeleteResult>");
    for key in wanted.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>")).map(|(key, _)| key)
    {
        objects.remove(key);
        text.push_str(&format!("<Deleted><Key>{key}</Key></Deleted>"));
    }
    text.push_str("</DeleteResult>");
    answer("200 OK", "content-type: application/xml\r\n", text.as_bytes())
}
