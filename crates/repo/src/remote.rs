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
use tokio::time::{Instant, sleep};

use crate::objects::{Listed, Objects, Pending, Put};
use crate::remote_error::{error, invalid_settings, is_missing, is_taken, may_pass};

/// Pauses before a request is repeated: the first one, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(15)];

/// Largest body of a creation that has the time of other requests, in bytes.
const UPLOAD_BYTES: usize = 1 << 20;
/// Variables whose values are the URLs of stores.
const ENDPOINTS: [&str; 5] =
    ["aws_endpoint", "aws_endpoint_url", "aws_endpoint_url_s3", "azure_endpoint", "azure_storage_endpoint"];

/// Times after which requests to a bucket end.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Time in which one request must end.
    pub request: Duration,
    /// Time in which one creation of more than 1 MiB must end. In 10 minutes four packs at once need 1 Mbit/s.
    pub upload: Duration,
    /// Time during which a request that fails in passing is repeated.
    pub retry: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            request: Duration::from_secs(60),
            upload: Duration::from_secs(600),
            retry: Duration::from_secs(170),
        }
    }
}

/// A store of the crate `object_store`, whose requests run on a thread of their own.
struct Remote {
    place: String,
    prefix: Key,
    store: Arc<dyn ObjectStore>,
    /// The same store with the time of uploads.
    uploads: Arc<dyn ObjectStore>,
    retry: Duration,
    runtime: Handle,
}

/// Connects to the store at `place`: `s3://BUCKET/PREFIX`, `gs://...`, `az://CONTAINER/...`, or a folder, which `make` makes.
/// Credentials and the endpoint are variables of `environment`: `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT` and so on.
pub fn connect(
    place: &str,
    make: bool,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Arc<dyn Objects>> {
    connect_with(place, make, environment, Timeouts::default())
}

/// Connects as [`connect`] does, with other times after which requests end.
pub fn connect_with(
    place: &str,
    make: bool,
    environment: impl IntoIterator<Item = (String, String)>,
    timeouts: Timeouts,
) -> Result<Arc<dyn Objects>> {
    let ((store, uploads), prefix) = match place.split_once("://") {
        None => (folder(place, place, make).map(|store| (store.clone(), store))?, Key::default()),
        Some(("file", path)) => {
            (folder(place, path, make).map(|store| (store.clone(), store))?, Key::default())
        }
        Some((scheme, rest)) => {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let prefix = Key::parse(prefix)
                .map_err(|e| Error::invalid(place, format!("{e}; correct what follows the bucket")))?;
            (bucket_of(scheme, bucket, place, environment, timeouts)?, prefix)
        }
    };
    Ok(Arc::new(Remote {
        place: place.trim_end_matches('/').to_owned(),
        prefix,
        store,
        uploads,
        retry: timeouts.retry,
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

/// Returns the store of a bucket, and the same one for uploads.
fn bucket_of(
    scheme: &str,
    bucket: &str,
    place: &str,
    environment: impl IntoIterator<Item = (String, String)>,
    timeouts: Timeouts,
) -> Result<(Arc<dyn ObjectStore>, Arc<dyn ObjectStore>)> {
    // Other characters would be ones of the URLs of requests.
    if bucket.is_empty() || !bucket.bytes().all(|c| c.is_ascii_alphanumeric() || b"-._".contains(&c)) {
        let expected = "expected the name of a bucket after the scheme, of letters, digits, - . and _";
        return Err(Error::invalid(place, expected));
    }
    // The provider of this program's cryptography; another one may be set already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry =
        RetryConfig { backoff: BackoffConfig::default(), max_retries: 12, retry_timeout: timeouts.retry };
    // The builders have the same methods and no trait.
    macro_rules! built {
        ($builder:ty, $prefix:literal, $with_name:ident) => {{
            let mut settings = Vec::new();
            for (name, value) in environment {
                let lower_case = name.to_ascii_lowercase();
                if let Some(key) = lower_case.strip_prefix($prefix).and_then(|_| lower_case.parse().ok()) {
                    settings.push((key, checked(&name, &value)?));
                }
            }
            let build = |timeout| {
                let options = ClientOptions::new().with_timeout(timeout);
                let builder = <$builder>::new().with_client_options(options).with_retry(retry.clone());
                let settings = settings.iter().cloned();
                let builder = settings.fold(builder, |builder, (key, value)| builder.with_config(key, value));
                builder.$with_name(bucket).build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
            };
            build(timeouts.request).and_then(|store| Ok((store, build(timeouts.upload)?)))
        }};
    }
    let built = match scheme {
        "s3" => built!(AmazonS3Builder, "aws_", with_bucket_name),
        "gs" => built!(GoogleCloudStorageBuilder, "google_", with_bucket_name),
        "az" => built!(MicrosoftAzureBuilder, "azure_", with_container_name),
        _ => {
            let expected = "expected s3://, gs://, az:// or a folder";
            return Err(Error::invalid(place, format!("{scheme}:// is no store of objects: {expected}")));
        }
    };
    built.map_err(|e| invalid_settings(place, &e))
}

/// Returns the value of a variable, without the line break that a file may have at its end.
fn checked(name: &str, value: &str) -> Result<String> {
    let (value, lower_case) = (value.trim(), name.to_ascii_lowercase());
    // They become parts of headers. Google's are JSON.
    if lower_case.starts_with("aws_") && !value.bytes().all(|c| (b' '..=b'~').contains(&c)) {
        let cause = "the value of this variable has characters that are not printable ASCII; correct it";
        return Err(Error::invalid(name, cause));
    }
    let is_url = || {
        let url = reqwest::Url::parse(value);
        url.is_ok_and(|url| url.has_host() && ["http", "https"].contains(&url.scheme()))
    };
    if ENDPOINTS.contains(&&*lower_case) && !is_url() {
        let cause = format!("{value:?} is no endpoint: expected https://HOST or https://HOST:PORT");
        return Err(Error::invalid(name, cause));
    }
    Ok(value.to_owned())
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

    fn run<T: Send + 'static, F>(
        &self,
        name: &str,
        request: impl Fn(Arc<dyn ObjectStore>) -> F + Send + Sync + 'static,
    ) -> Pending<T>
    where
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        self.run_on(&self.store, name, request)
    }

    /// Runs a request on the thread of the store; any executor can await it. `request` is called for each repetition.
    fn run_on<T: Send + 'static, F>(
        &self,
        store: &Arc<dyn ObjectStore>,
        name: &str,
        request: impl Fn(Arc<dyn ObjectStore>) -> F + Send + Sync + 'static,
    ) -> Pending<T>
    where
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        let place = format!("{}/{name}", self.place);
        let (store, retry) = (store.clone(), self.retry);
        let running = self.runtime.spawn(async move { repeated(|| request(store.clone()), retry).await });
        async move {
            let ended = running.await.map_err(|e| Error::new(ErrorKind::Io, &place, e.to_string()))?;
            ended.map_err(|e| error(&place, &e))
        }
        .boxed()
    }
}

/// Carries out a request whose repetition does no harm. The crate does not repeat one that may have been carried out.
async fn repeated<T, F: Future<Output = object_store::Result<T>>>(
    request: impl Fn() -> F,
    retry: Duration,
) -> object_store::Result<T> {
    let (begin, [mut pause, longest]) = (Instant::now(), PAUSES);
    loop {
        match request().await {
            Err(e) if may_pass(&e) && begin.elapsed() + pause < retry => {}
            done => return done,
        }
        sleep(pause).await;
        pause = longest.min(2 * pause);
    }
}

impl Objects for Remote {
    fn place(&self) -> &str {
        &self.place
    }

    fn get(&self, name: &str) -> Pending<Bytes> {
        let key = self.key(name);
        self.run(name, move |store| {
            let key = key.clone();
            async move { store.get(&key).await?.bytes().await }
        })
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Pending<Bytes> {
        let key = self.key(name);
        self.run(name, move |store| {
            let (key, range) = (key.clone(), range.clone());
            async move { store.get_range(&key, range).await }
        })
    }

    fn put_new(&self, name: &str, body: Bytes) -> Pending<Put> {
        let key = self.key(name);
        let store = if body.len() > UPLOAD_BYTES { &self.uploads } else { &self.store };
        self.run_on(store, name, move |store| {
            let (key, body) = (key.clone(), body.clone());
            async move {
                match store.put_opts(&key, body.into(), PutMode::Create.into()).await {
                    Ok(_) => Ok(Put::Created),
                    Err(e) if is_taken(&e) => Ok(Put::Exists),
                    Err(e) => Err(e),
                }
            }
        })
    }

    fn list(&self, prefix: &str) -> Pending<Vec<Listed>> {
        let key = self.key(prefix);
        let skipped = self.prefix.as_ref().len();
        self.run(prefix, move |store| {
            let key = key.clone();
            async move {
                let objects: Vec<_> = store.list(Some(&key)).try_collect().await?;
                let listed = objects.into_iter().map(|object| Listed {
                    name: object.location.as_ref()[skipped..].trim_start_matches('/').to_owned(),
                    bytes: object.size,
                });
                let mut listed: Vec<_> = listed.collect();
                listed.sort_by(|a, b| a.name.cmp(&b.name));
                Ok(listed)
            }
        })
    }

    fn size(&self, name: &str) -> Pending<u64> {
        let key = self.key(name);
        self.run(name, move |store| {
            let key = key.clone();
            async move { Ok(store.head(&key).await?.size) }
        })
    }

    fn delete(&self, name: &str) -> Pending<()> {
        let key = self.key(name);
        self.run(name, move |store| {
            let key = key.clone();
            async move {
                match store.delete(&key).await {
                    Err(e) if is_missing(&e) => Ok(()),
                    done => done,
                }
            }
        })
    }
}
