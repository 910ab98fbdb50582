//! What users see of wrong settings.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use blk::{ErrorKind, Result};
use repo::{Objects, connect_with};

use crate::proxy::{Action, Proxy};
use crate::{
    SECRET_KEY, SHORT_TIMES, assert_error, at, bucket, environment, init, memory, on_each_store, wait,
};

on_each_store!(wrong_keys_are_refused, buckets_that_do_not_exist_are_refused);

/// Connects with variables that are set, or removed where their value is empty, and reads, lists, creates and removes.
fn all_fail(proxy: &Proxy, place: &str, variables: &[(&str, &str)], kind: ErrorKind, parts: &[&str]) {
    let objects = connected(proxy, place, variables).unwrap();
    assert_error(wait(objects.get("repository")), kind, parts);
    assert_error(wait(objects.list("log/")), kind, parts);
    assert_error(wait(objects.put_new("log/1", "x".into())), kind, parts);
    assert_error(wait(objects.delete("log/1")), kind, parts);
    assert_error(wait(init(&objects)).map(drop), kind, parts);
}

fn connected(proxy: &Proxy, place: &str, variables: &[(&str, &str)]) -> Result<Arc<dyn Objects>> {
    let mut all: BTreeMap<_, _> = environment(proxy);
    for (name, value) in variables {
        match value.is_empty() {
            true => drop(all.remove(*name)),
            false => drop(all.insert((*name).to_owned(), (*value).to_owned())),
        }
    }
    connect_with(place, true, all, SHORT_TIMES)
}

fn wrong_keys_are_refused(proxy: &Proxy) {
    let key = [("AWS_ACCESS_KEY_ID", "AKOTHER")];
    let expected = ["s3://backups/p/", "the store does not have the key in AWS_ACCESS_KEY_ID: correct it"];
    all_fail(proxy, &at("/p"), &key, ErrorKind::Refused, &expected);
}

#[test]
fn a_wrong_secret_is_refused() {
    let Some(proxy) = crate::versitygw() else { return };
    let secret = format!("{SECRET_KEY}x");
    let expected =
        ["s3://backups/p/", "403 Forbidden, SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY is not"];
    all_fail(&proxy, &at("/p"), &[("AWS_SECRET_ACCESS_KEY", &secret)], ErrorKind::Refused, &expected);
}

#[test]
fn a_clock_that_is_wrong_is_named() {
    let Some(proxy) = crate::versitygw() else { return };
    proxy.rule("", "", usize::MAX, Action::Old);
    let expected = ["403 Forbidden, RequestTimeTooSkewed", "the clock of this host differs"];
    all_fail(&proxy, &at("/p"), &[], ErrorKind::Refused, &expected);
}

fn buckets_that_do_not_exist_are_refused(proxy: &Proxy) {
    let expected =
        ["s3://backup/p/", "404 Not Found, NoSuchBucket", "make the bucket first, or correct its name"];
    all_fail(proxy, "s3://backup/p", &[], ErrorKind::Refused, &expected);
}

#[test]
fn other_regions_and_missing_rights_are_named() {
    let proxy = memory();
    for (status, code, hint) in [
        ("400 Bad Request", "AuthorizationHeaderMalformed", "AWS_REGION"),
        ("301 Moved Permanently", "PermanentRedirect", "AWS_REGION"),
        ("403 Forbidden", "AccessDenied", "what they permit"),
        ("400 Bad Request", "ExpiredToken", "get new credentials"),
    ] {
        proxy.rule("", "", usize::MAX, Action::Refuse { status, code });
        all_fail(&proxy, &at(""), &[], ErrorKind::Refused, &["s3://backups/", hint]);
        proxy.clear();
    }
}

#[test]
fn an_endpoint_that_does_not_listen_is_named() {
    let unused = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let endpoint = format!("http://{unused}");
    let expected = ["s3://backups/p/", &*endpoint, "Connection refused", "look at the endpoint"];
    all_fail(&memory(), &at("/p"), &[("AWS_ENDPOINT", &endpoint)], ErrorKind::Io, &expected);
}

#[test]
fn an_endpoint_without_encryption_must_be_permitted() {
    let expected = ["s3://backups/", "AWS_ALLOW_HTTP=true"];
    all_fail(&memory(), &at(""), &[("AWS_ALLOW_HTTP", "")], ErrorKind::Invalid, &expected);
}

#[test]
fn an_environment_without_credentials_is_named() {
    let none = [("AWS_ACCESS_KEY_ID", ""), ("AWS_SECRET_ACCESS_KEY", "")];
    let unused = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let metadata = format!("http://{unused}");
    let variables = [&none[..], &[("AWS_METADATA_ENDPOINT", &metadata)]].concat();
    let expected = ["s3://backups/", "no credentials", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"];
    all_fail(&memory(), &at(""), &variables, ErrorKind::Refused, &expected);
}

#[test]
fn settings_that_cannot_be_used_are_refused_before_any_request() {
    let proxy = memory();
    let with_line = format!("{SECRET_KEY}\nAKTESTS");
    for (place, variable, value, expected) in [
        ("s3://backups", "AWS_ALLOW_HTTP", "maybe", "correct the variables"),
        ("s3://backups", "AWS_SECRET_ACCESS_KEY", "", "correct the variables"),
        ("s3://backups", "AWS_SECRET_ACCESS_KEY", &with_line, "printable ASCII"),
        ("s3://backups", "AWS_ENDPOINT", "127.0.0.1:9000", "expected https://HOST"),
        ("s3://backups", "AWS_ENDPOINT", "http://", "expected https://HOST"),
        ("s3://", "PATH", "/bin", "expected the name of a bucket"),
        ("s3://back ups/x", "PATH", "/bin", "expected the name of a bucket"),
        ("s3://backups/a//b", "PATH", "/bin", "empty path segment"),
        ("s4://backups/a", "PATH", "/bin", "expected s3://, gs://, az:// or a folder"),
        ("backups", "PATH", "/bin", "expected an absolute path"),
    ] {
        let refused = connected(&proxy, place, &[(variable, value)]).map(drop);
        assert_error(refused, ErrorKind::Invalid, &[expected]);
    }
    // A line break at the end of a file that a variable was read from.
    let objects = connected(&proxy, "s3://backups", &[("AWS_SECRET_ACCESS_KEY", &format!("{SECRET_KEY}\n"))]);
    wait(init(&objects.unwrap())).unwrap();
    assert_error(
        wait(bucket(&proxy, "", SHORT_TIMES).get("other")),
        ErrorKind::NotFound,
        &["s3://backups/other"],
    );
}
