//! Stores of objects: a folder, S3, Google Cloud Storage, Azure Blob Storage; by the crate `object_store`.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use blk::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures_util::{FutureExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, PutMode, RetryConfig};
use tokio::runtime::{Builder, Handle};

use crate::objects::{Listed, Objects, Pending, Put};

/// Time in which one request to a store must end.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Time during which a request that fails in passing is repeated.
const RETRY_TIMEOUT: Duration = Duration::from_secs(170);

/// A store of the crate `object_store`, whose requests run on a thread of their own.
struct Remote {
    place: String,
    prefix: Key,
    store: Arc<dyn ObjectStore>,
    runtime: Handle,
}

/// Connects to the store at `place`: `s3://BUCKET/PREFIX`, `gs://...`, `az://CONTAINER/...`, or a folder, which `make` makes.
/// Credentials and the endpoint are variables of `environment`: `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT` and so on.
pub fn connect(
    place: &str,
    make: bool,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Arc<dyn Objects>> {
    let failed = |e: object_store::Error| error(place, &e);
    let (store, prefix): (Arc<dyn ObjectStore>, _) = match place.split_once("://") {
        None => (folder(place, place, make)?, Key::default()),
        Some(("file", path)) => (folder(place, path, make)?, Key::default()),
        Some((scheme, rest)) => {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let prefix = Key::parse(prefix).map_err(|e| Error::invalid(place, e.to_string()))?;
            (bucket_of(scheme, bucket, place, environment)?.map_err(failed)?, prefix)
        }
    };
    Ok(Arc::new(Remote {
        place: place.trim_end_matches('/').to_owned(),
        prefix,
        store,
        runtime: start_runtime()?,
    }))
}

fn folder(place: &str, path: &str, make: bool) -> Result<Arc<dyn ObjectStore>> {
    if !Path::new(path).is_absolute() {
        return Err(Error::invalid(place, "expected an absolute path or a URI such as s3://BUCKET/PREFIX"));
    }
    match make {
        true => fs::create_dir_all(path).map_err(|e| blk::Errno::from(e).at(place, "making the folder"))?,
        false if !Path::new(path).is_dir() => {
            let cause = "there is no folder here, so no repository; `unstun repo init` makes one";
            return Err(Error::not_found(place, cause));
        }
        false => {}
    }
    let folder = LocalFileSystem::new_with_prefix(path).map_err(|e| error(place, &e))?;
    Ok(Arc::new(folder.with_fsync(true)))
}

type Built = object_store::Result<Arc<dyn ObjectStore>>;

fn bucket_of(
    scheme: &str,
    bucket: &str,
    place: &str,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Built> {
    if bucket.is_empty() {
        return Err(Error::invalid(place, "expected the name of a bucket after the scheme"));
    }
    // The provider of this program's cryptography; another one may be set already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry =
        RetryConfig { backoff: BackoffConfig::default(), max_retries: 12, retry_timeout: RETRY_TIMEOUT };
    let options = ClientOptions::new().with_timeout(REQUEST_TIMEOUT);
    let variables: Vec<_> =
        environment.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    // The builders have the same methods and no trait.
    macro_rules! built {
        ($builder:ty, $prefix:literal, $with_name:ident) => {{
            let mut builder = <$builder>::new().with_client_options(options).with_retry(retry);
            for (name, value) in variables.into_iter().filter(|(name, _)| name.starts_with($prefix)) {
                if let Ok(key) = name.parse() {
                    builder = builder.with_config(key, value);
                }
            }
            builder.$with_name(bucket).build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
        }};
    }
    Ok(match scheme {
        "s3" => built!(AmazonS3Builder, "aws_", with_bucket_name),
        "gs" => built!(GoogleCloudStorageBuilder, "google_", with_bucket_name),
        "az" => built!(MicrosoftAzureBuilder, "azure_", with_container_name),
        _ => {
            let expected = "expected s3://, gs://, az:// or a folder";
            return Err(Error::invalid(place, format!("{scheme}:// is no store of objects: {expected}")));
        }
    })
}

/// Starts the thread of the requests. It ends with the process: requests of a dropped store are not lost halfway.
fn start_runtime() -> Result<Handle> {
    let failed = |e: std::io::Error| blk::Errno::from(e).at("", "starting the thread of the object store");
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    let run = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new().name("objects".into()).spawn(run).map_err(failed)?;
    Ok(handle)
}

impl Remote {
    fn key(&self, name: &str) -> Key {
        name.split('/')
            .fold(self.prefix.clone(), |key, part| if part.is_empty() { key } else { key.join(part) })
    }

    /// Runs a request on the thread of the store; any executor can await it.
    fn run<T: Send + 'static>(
        &self,
        name: &str,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Pending<T> {
        let place = format!("{}/{name}", self.place);
        let running = self.runtime.spawn(request);
        async move {
            let ended = running.await.map_err(|e| Error::new(ErrorKind::Io, &place, e.to_string()))?;
            ended.map_err(|e| error(&place, &e))
        }
        .boxed()
    }
}

impl Objects for Remote {
    fn place(&self) -> &str {
        &self.place
    }

    fn get(&self, name: &str) -> Pending<Bytes> {
        let (store, key) = (self.store.clone(), self.key(name));
        self.run(name, async move { store.get(&key).await?.bytes().await })
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Pending<Bytes> {
        let (store, key) = (self.store.clone(), self.key(name));
        self.run(name, async move { store.get_range(&key, range).await })
    }

    fn put_new(&self, name: &str, body: Bytes) -> Pending<Put> {
        let (store, key) = (self.store.clone(), self.key(name));
        self.run(name, async move {
            match store.put_opts(&key, body.into(), PutMode::Create.into()).await {
                Ok(_) => Ok(Put::Created),
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                    Ok(Put::Exists)
                }
                Err(e) => Err(e),
            }
        })
    }

    fn list(&self, prefix: &str) -> Pending<Vec<Listed>> {
        let (store, key) = (self.store.clone(), self.key(prefix));
        let skipped = self.prefix.as_ref().len();
        self.run(prefix, async move {
            let objects: Vec<_> = store.list(Some(&key)).try_collect().await?;
            let listed = objects.into_iter().map(|object| Listed {
                name: object.location.as_ref()[skipped..].trim_start_matches('/').to_owned(),
                bytes: object.size,
            });
            let mut listed: Vec<_> = listed.collect();
            listed.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(listed)
        })
    }

    fn size(&self, name: &str) -> Pending<u64> {
        let (store, key) = (self.store.clone(), self.key(name));
        self.run(name, async move { Ok(store.head(&key).await?.size) })
    }

    fn delete(&self, name: &str) -> Pending<()> {
        let (store, key) = (self.store.clone(), self.key(name));
        self.run(name, async move {
            match store.delete(&key).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                done => done,
            }
        })
    }
}

/// Returns the error of a request, with what to do. The messages of the crate contain no credentials.
fn error(place: &str, e: &object_store::Error) -> Error {
    use object_store::Error as E;
    let text = e.to_string();
    let (kind, hint) = match e {
        E::NotFound { .. } if text.contains("NoSuchBucket") => {
            (ErrorKind::Refused, "; make the bucket first")
        }
        E::NotFound { .. } => (ErrorKind::NotFound, ""),
        E::AlreadyExists { .. } | E::Precondition { .. } => (ErrorKind::Exists, ""),
        E::PermissionDenied { .. } | E::Unauthenticated { .. } if text.contains("RequestTimeTooSkewed") => {
            (ErrorKind::Refused, "; the clock of this host differs from the store's: set it")
        }
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
            (ErrorKind::Refused, "; look at the credentials in the environment, and at what they permit")
        }
        E::NotSupported { .. } | E::NotImplemented { .. } => {
            (ErrorKind::Unsupported, "; the store must create objects only if their names are free")
        }
        _ if text.contains("No space left") || text.contains("QuotaExceeded") => (ErrorKind::NoSpace, ""),
        _ => (ErrorKind::Io, ""),
    };
    Error::new(kind, place, format!("{text}{hint}"))
}
