//! Stores and networks that fail in passing, and for longer.

use std::time::Duration;

use blk::ErrorKind;
use repo::{Grace, Put, Timeouts, prune};

use crate::proxy::{Action, Proxy};
use crate::{
    Content, SHORT_TIMES, TIMES, assert_error, backup, bucket, compare, init, on_each_store, open, wait,
};

on_each_store!(
    requests_that_fail_in_passing_are_repeated,
    cut_bodies_are_read_again,
    a_silent_store_is_asked_again,
    a_store_that_is_overloaded_for_long_is_an_error,
    connections_that_always_end_are_an_error,
    a_page_of_a_proxy_is_not_taken_for_the_end_of_the_log
);

const SLOW_DOWN: Action = Action::Refuse { status: "503 Slow Down", code: "SlowDown" };

fn requests_that_fail_in_passing_are_repeated(proxy: &Proxy) {
    for (n, fault) in [SLOW_DOWN, Action::Close, Action::LoseAnswer, Action::Reset].into_iter().enumerate() {
        wait(async {
            let objects = bucket(proxy, &format!("/r{n}"), TIMES);
            // Of each method the first two requests; POST removes.
            let plan = || ["GET", "PUT", "POST"].map(|method| proxy.rule(method, "", 2, fault.clone()));
            plan();
            let mut repository = init(&objects).await.unwrap();
            let content: Content = (0..20).map(|n| (n, 1)).collect();
            backup(&mut repository, &content, 1).await.unwrap();
            plan();
            repository.forget(vec![2], 2).await.unwrap();
            let second = backup(&mut repository, &Content::from([(1, 5)]), 3).await.unwrap();
            plan();
            let pruned = prune(&mut repository, Grace::NONE, false, 4).await.unwrap();
            assert_eq!(pruned.backups, 1);
            plan();
            let repository = open(&objects).await.unwrap();
            compare(&repository, second, &Content::from([(1, 5)])).await.unwrap();
            let applied = proxy.clear();
            for method in ["GET", "PUT", "POST"] {
                assert!(
                    applied.iter().filter(|line| line.starts_with(method)).count() >= 2,
                    "{fault:?}: {applied:?}"
                );
            }
        });
    }
}

fn cut_bodies_are_read_again(proxy: &Proxy) {
    wait(async {
        let objects = bucket(proxy, "", TIMES);
        let mut repository = init(&objects).await.unwrap();
        let content: Content = (0..600).map(|n| (n, 7)).collect();
        let number = backup(&mut repository, &content, 1).await.unwrap();
        for part in ["/repository", "keys/", "log/", "packs/", "list-type"] {
            proxy.rule("GET", part, 2, Action::Truncate);
        }
        let mut repository = open(&objects).await.unwrap();
        compare(&repository, number, &content).await.unwrap();
        proxy.rule("POST", "", 1, Action::Truncate);
        repository.forget(vec![number], 2).await.unwrap();
        prune(&mut repository, Grace::NONE, false, 3).await.unwrap();
        assert_eq!(objects.list("packs/").await.unwrap(), []);
        assert_eq!(proxy.clear().len(), 11);
    });
}

fn a_silent_store_is_asked_again(proxy: &Proxy) {
    let timeouts = Timeouts { request: Duration::from_secs(1), ..TIMES };
    wait(async {
        let objects = bucket(proxy, "", timeouts);
        proxy.rule("PUT", "", 1, Action::Silence);
        proxy.rule("GET", "", 1, Action::Silence);
        // It was carried out.
        assert_eq!(objects.put_new("a", "x".into()).await.unwrap(), Put::Exists);
        assert_eq!(objects.get("a").await.unwrap(), "x");
        assert_eq!(proxy.clear().len(), 2);

        // A large body has the time of uploads.
        let timeouts = Timeouts { upload: Duration::from_secs(1), retry: Duration::ZERO, ..TIMES };
        let objects = bucket(proxy, "", timeouts);
        proxy.rule("PUT", "", 1, Action::Silence);
        let put = objects.put_new("b", vec![1; 2 << 20].into()).await;
        assert_error(put, ErrorKind::Io, &["s3://backups/b", "operation timed out", "look at the endpoint"]);
    });
}

fn a_store_that_is_overloaded_for_long_is_an_error(proxy: &Proxy) {
    proxy.rule("", "", usize::MAX, SLOW_DOWN);
    let objects = bucket(proxy, "/p", SHORT_TIMES);
    let expected =
        ["s3://backups/p/", "503 Service Unavailable, SlowDown", "overloaded or down: try again later"];
    assert_error(wait(objects.put_new("log/1", "x".into())), ErrorKind::Io, &expected);
    assert_error(wait(objects.get("log/1")), ErrorKind::Io, &expected);
    assert_error(wait(objects.get_range("log/1", 0..1)), ErrorKind::Io, &expected);
    assert_error(wait(objects.list("log/")), ErrorKind::Io, &expected);
    assert_error(wait(objects.delete("log/1")), ErrorKind::Io, &expected);
    assert_error(wait(init(&objects)).map(drop), ErrorKind::Io, &expected);
    assert!(proxy.clear().len() > 12);
}

fn connections_that_always_end_are_an_error(proxy: &Proxy) {
    let endpoint = format!("no answer from http://{}", proxy.address);
    for fault in [Action::Close, Action::LoseAnswer, Action::Reset] {
        proxy.rule("", "", usize::MAX, fault);
        let objects = bucket(proxy, "/p", SHORT_TIMES);
        let expected = ["s3://backups/p/", &*endpoint, "look at the endpoint"];
        assert_error(wait(objects.put_new("log/1", "x".into())), ErrorKind::Io, &expected);
        assert_error(wait(objects.list("log/")), ErrorKind::Io, &expected);
        proxy.clear();
    }
    // A cut list: the request succeeded, its answer did not arrive.
    proxy.rule("GET", "", usize::MAX, Action::Truncate);
    let list = wait(bucket(proxy, "/p", SHORT_TIMES).list("log/"));
    assert_error(list, ErrorKind::Io, &["s3://backups/p/log/", "look at the endpoint"]);
}

fn a_page_of_a_proxy_is_not_taken_for_the_end_of_the_log(proxy: &Proxy) {
    wait(async {
        let objects = bucket(proxy, "", TIMES);
        let mut repository = init(&objects).await.unwrap();
        backup(&mut repository, &Content::from([(1, 1)]), 1).await.unwrap();
        let page = Action::Page { status: "404 Not Found", body: "<html><body>Please log in</body></html>" };
        proxy.rule("GET", "log/0000000002", 1, page);
        let expected = ["s3://backups/log/0000000002", "404 Not Found: a page", "correct the endpoint"];
        assert_error(open(&objects).await.map(drop), ErrorKind::Refused, &expected);
    });
}
