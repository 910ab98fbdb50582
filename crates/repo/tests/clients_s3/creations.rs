//! Creations whose answers are lost, late or without a decision.

use blk::ErrorKind;
use repo::Put;

use crate::proxy::{Action, Proxy};
use crate::{
    Content, SHORT_TIMES, TIMES, assert_error, backup, bucket, compare, init, memory as in_memory,
    on_each_store, open, wait,
};

on_each_store!(
    lost_answers_of_creations_change_nothing,
    a_creation_that_another_writer_won_is_seen_after_a_lost_answer,
    a_conflict_without_a_decision_is_repeated,
    a_conflict_that_does_not_end_is_an_error
);

fn lost_answers_of_creations_change_nothing(proxy: &Proxy) {
    for (lost, prefix) in [(Action::LoseAnswer, "/closed"), (Action::Reset, "/reset")] {
        wait(async {
            let objects = bucket(proxy, prefix, TIMES);
            // The first answer for each kind of object: the keys, the description, entries, packs, lists of chunks.
            for part in ["keys/", "/repository", "log/", "packs/", "index/"] {
                proxy.rule("PUT", part, 1, lost.clone());
            }
            let mut repository = init(&objects).await.unwrap();
            assert_eq!(repository.list_keys().await.unwrap().len(), 1);
            let content = Content::from([(1, 1), (400, 2)]);
            let number = backup(&mut repository, &content, 1).await.unwrap();
            proxy.rule("PUT", "log/", 1, lost.clone());
            let second = backup(&mut repository, &Content::from([(2, 2)]), 2).await.unwrap();
            assert_eq!(proxy.clear().len(), 6);
            let repository = open(&objects).await.unwrap();
            // Begin and backup, twice: no entry is there two times.
            assert_eq!((number, second, repository.state().number), (2, 4, 4));
            compare(&repository, number, &content).await.unwrap();
        });
    }
}

fn a_creation_that_another_writer_won_is_seen_after_a_lost_answer(proxy: &Proxy) {
    wait(async {
        let objects = bucket(proxy, "", TIMES);
        let mut repository = init(&objects).await.unwrap();
        let mut other = open(&objects).await.unwrap();
        let theirs = backup(&mut other, &Content::from([(1, 1)]), 1).await.unwrap();
        // The entry of number 1 is another writer's: the begin gets the next free one.
        proxy.rule("PUT", "log/0000000001", 1, Action::Reset);
        proxy.rule("PUT", "log/0000000003", 1, Action::Reset);
        let ours = backup(&mut repository, &Content::from([(1, 2)]), 2).await.unwrap();
        assert_eq!((theirs, ours), (2, 4));
        compare(&open(&objects).await.unwrap(), ours, &Content::from([(1, 2)])).await.unwrap();
    });
}

fn a_conflict_without_a_decision_is_repeated(proxy: &Proxy) {
    wait(async {
        let objects = bucket(proxy, "", TIMES);
        for code in ["ConditionalRequestConflict", "OperationAborted"] {
            proxy.rule("PUT", "", 2, Action::Refuse { status: "409 Conflict", code });
            assert_eq!(objects.put_new(code, "content".into()).await.unwrap(), Put::Created);
            assert_eq!(proxy.clear().len(), 2);
            assert_eq!(objects.put_new(code, "other".into()).await.unwrap(), Put::Exists);
            assert_eq!(objects.get(code).await.unwrap(), "content");
        }
    });
}

fn a_conflict_that_does_not_end_is_an_error(proxy: &Proxy) {
    let conflict = Action::Refuse { status: "409 Conflict", code: "ConditionalRequestConflict" };
    proxy.rule("PUT", "", usize::MAX, conflict);
    let put = wait(bucket(proxy, "/p", SHORT_TIMES).put_new("log/1", "x".into()));
    assert_error(
        put,
        ErrorKind::Io,
        &["s3://backups/p/log/1", "409 Conflict", "ConditionalRequestConflict", "try again"],
    );
}

/// The bucket in memory does not check signatures, which cover the condition.
#[test]
fn a_store_without_conditions_is_refused() {
    let proxy = &in_memory();
    wait(async {
        let objects = bucket(proxy, "/new", TIMES);
        proxy.rule("PUT", "/new/", usize::MAX, Action::Unconditional);
        let refused = init(&objects).await.map(drop);
        assert_error(
            refused,
            ErrorKind::Unsupported,
            &["s3://backups/new", "replaced an object", "cannot be used"],
        );
        proxy.clear();
        // Nothing is left that looks like a repository.
        assert_error(open(&objects).await.map(drop), ErrorKind::NotFound, &["there is no repository here"]);
        let mut repository = init(&objects).await.unwrap();

        proxy.rule("PUT", "log/", usize::MAX, Action::Unconditional);
        let refused = backup(&mut repository, &Content::from([(1, 1)]), 1).await;
        assert_error(refused, ErrorKind::Unsupported, &["s3://backups/new", "replaced an object"]);
        proxy.clear();

        // A store that looks for the object first: two of the requests find none.
        proxy.rule("PUT", "/racy/repository", 2, Action::Unconditional);
        let refused = init(&bucket(proxy, "/racy", TIMES)).await.map(drop);
        assert_error(refused, ErrorKind::Unsupported, &["s3://backups/racy", "choose another one"]);

        let not_implemented = Action::Refuse { status: "501 Not Implemented", code: "NotImplemented" };
        proxy.rule("PUT", "/other/", usize::MAX, not_implemented);
        let refused = init(&bucket(proxy, "/other", SHORT_TIMES)).await.map(drop);
        assert_error(
            refused,
            ErrorKind::Unsupported,
            &["501 Not Implemented", "only if their names are free"],
        );
    });
}
