//! The life of a repository in a bucket.

use std::sync::Arc;

use blk::ErrorKind;
use repo::{Grace, Objects, Put, Seen, connect, prune, verify};

use crate::proxy::Proxy;
use crate::{BUCKET, Content, TIMES, assert_error, backup, bucket, compare, init, on_each_store, open, wait};

on_each_store!(
    backups_are_read_back_forgotten_and_pruned,
    repositories_side_by_side_do_not_see_each_other,
    one_of_several_creations_wins
);

fn backups_are_read_back_forgotten_and_pruned(proxy: &Proxy) {
    live(&bucket(proxy, "/site/one", TIMES));
}

#[test]
fn a_folder_is_a_store_too() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("site/one").display().to_string();
    live(&connect(&place, true, []).unwrap());
}

fn live(objects: &Arc<dyn Objects>) {
    wait(async {
        let mut repository = init(objects).await.unwrap();
        assert_error(
            init(objects).await,
            ErrorKind::Exists,
            &[objects.place(), "there is a repository already"],
        );

        let first: Content = (0..CHUNK_COUNT).map(|n| (n * 2, 1)).collect();
        let one = backup(&mut repository, &first, 1).await.unwrap();
        let changes = Content::from([(0, 2), (300, 2), (599, 2)]);
        let two = backup(&mut repository, &changes, 2).await.unwrap();
        let mut second = first.clone();
        second.extend(changes);

        let mut repository = open(objects).await.unwrap();
        let backups: Vec<_> = repository.state().backups.keys().copied().collect();
        assert_eq!(backups, [one, two]);
        let figures = repository.state().backup(two).unwrap().figures;
        assert!(figures.new_bytes == 3 * 4096, "{figures:?}");
        compare(&repository, one, &first).await.unwrap();
        compare(&repository, two, &second).await.unwrap();

        repository.forget(vec![one], 3).await.unwrap();
        // The second backup needs packs of the first one.
        let pruned = prune(&mut repository, Grace::NONE, false, 4).await.unwrap();
        assert_eq!(pruned.backups, 1);
        compare(&repository, two, &second).await.unwrap();
        let third: Content = (0..600).map(|n| (n, 3)).collect();
        let three = backup(&mut repository, &third, 5).await.unwrap();
        repository.forget(vec![two], 6).await.unwrap();
        let pruned = prune(&mut repository, Grace::NONE, false, 7).await.unwrap();
        assert!(pruned.packs >= 2 && pruned.bytes > 300 * 4096, "{pruned:?}");

        let repository = open(objects).await.unwrap();
        assert_error(repository.state().backup(one).map(drop), ErrorKind::NotFound, &["backup 2"]);
        compare(&repository, three, &third).await.unwrap();
        let left = objects.list("packs/").await.unwrap();
        assert!(left.iter().map(|pack| pack.bytes).sum::<u64>() == pruned.kept_bytes, "{left:?}");
        let (backup, mut seen) = (repository.state().backup(three).unwrap(), Seen::default());
        let verified = verify(&repository, (three, backup), 1, &mut seen, &mut |_| Ok(())).await.unwrap();
        assert_eq!((verified.chunks, verified.findings), (600, vec![]));
        // What is gone stays gone, and is no error.
        objects.delete("packs/0000000001/00000000").await.unwrap();
    });
}

const CHUNK_COUNT: u64 = 300;

fn repositories_side_by_side_do_not_see_each_other(proxy: &Proxy) {
    wait(async {
        // Each prefix begins as another one does. An object in the bucket itself is none of them.
        let prefixes = ["", "/a", "/ab", "/a/b c", "/a/100%"];
        let buckets = prefixes.map(|prefix| bucket(proxy, prefix, TIMES));
        for (n, objects) in buckets.iter().enumerate() {
            for name in ["keys/1", "log/0000000001", "packs/0000000001/00000000"] {
                let put = objects.put_new(name, vec![n as u8; n + 1].into()).await.unwrap();
                assert_eq!(put, Put::Created, "{name} in {}", objects.place());
            }
        }
        for (n, objects) in buckets.iter().enumerate() {
            for (prefix, name) in [
                ("keys/", "keys/1"),
                ("packs/", "packs/0000000001/00000000"),
                ("packs/0000000001/", "packs/0000000001/00000000"),
            ] {
                let listed = objects.list(prefix).await.unwrap();
                let names: Vec<_> = listed.iter().map(|object| (&*object.name, object.bytes)).collect();
                assert_eq!(names, [(name, n as u64 + 1)], "in {}", objects.place());
                assert_eq!(objects.get(name).await.unwrap(), vec![n as u8; n + 1]);
                assert_eq!(objects.size(name).await.unwrap(), n as u64 + 1);
            }
            assert_eq!(objects.list("index/").await.unwrap(), []);
            assert_eq!(objects.list("packs/00000/").await.unwrap(), []);
        }
        assert_eq!(buckets[1].place(), format!("s3://{BUCKET}/a"));
    });
}

fn one_of_several_creations_wins(proxy: &Proxy) {
    wait(async {
        for round in 0..10 {
            let name = format!("log/{round:010}");
            let creations = (0..8_u8).map(|n| {
                let (objects, name) = (bucket(proxy, "/race", TIMES), name.clone());
                async move { (n, objects.put_new(&name, vec![n; 1000].into()).await.unwrap()) }
            });
            let done = futures_util::future::join_all(creations).await;
            let winners: Vec<_> =
                done.iter().filter(|(_, put)| *put == Put::Created).map(|(n, _)| *n).collect();
            assert_eq!(winners.len(), 1, "{done:?}");
            let body = bucket(proxy, "/race", TIMES).get(&name).await.unwrap();
            assert_eq!(body, vec![winners[0]; 1000]);
        }
    });
}
