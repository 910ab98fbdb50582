//! Names of images, as QEMU writes them: `rbd:POOL[/NAMESPACE]/IMAGE[:id=USER][:conf=FILE]`.

use std::fmt;
use std::str::FromStr;

/// Before the name of an image, where a path could be.
pub const PREFIX: &str = "rbd:";

/// An image of RBD, and as whom to use it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RbdName {
    /// The pool.
    pub pool: String,
    /// The namespace in the pool; empty for the default one.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// The user, without `client.`; None for `admin`.
    pub user: Option<String>,
    /// The file of the cluster's configuration; None for Ceph's usual places.
    pub config: Option<String>,
}

impl FromStr for RbdName {
    type Err = String;

    fn from_str(text: &str) -> Result<RbdName, String> {
        let expected = || {
            format!(
                "{text:?}: expected rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE, and after it :id=USER or :conf=FILE"
            )
        };
        let mut parts = text.strip_prefix(PREFIX).ok_or_else(expected)?.split(':');
        let path: Vec<&str> = parts.next().unwrap_or_default().split('/').collect();
        let (pool, namespace, image) = match path[..] {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] if !namespace.is_empty() => (pool, namespace, image),
            _ => return Err(expected()),
        };
        // A snapshot of an image (`@`) is read-only. A record has the whole name on one line.
        let is_sound = !text.contains(char::is_control) && !path.iter().any(|part| part.contains('@'));
        if pool.is_empty() || image.is_empty() || !is_sound {
            return Err(expected());
        }
        let mut name = RbdName {
            pool: pool.to_owned(),
            namespace: namespace.to_owned(),
            image: image.to_owned(),
            user: None,
            config: None,
        };
        for option in parts {
            match option.split_once('=') {
                Some(("id", user)) if !user.is_empty() => name.user = Some(user.to_owned()),
                Some(("conf", file)) if !file.is_empty() => name.config = Some(file.to_owned()),
                _ => return Err(expected()),
            }
        }
        Ok(name)
    }
}

impl RbdName {
    /// Returns the image as the program `rbd` names it.
    pub fn spec(&self) -> String {
        let between = if self.namespace.is_empty() { "" } else { "/" };
        format!("{}/{}{between}{}", self.pool, self.namespace, self.image)
    }
}

impl fmt::Display for RbdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.spec())?;
        self.user.iter().try_for_each(|user| write!(f, ":id={user}"))?;
        self.config.iter().try_for_each(|file| write!(f, ":conf={file}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in ["rbd:vms/store", "rbd:vms/team/store", "rbd:vms/store:id=unstun:conf=/etc/ceph/b.conf"] {
            assert_eq!(text.parse::<RbdName>().unwrap().to_string(), text);
        }
        let name: RbdName = "rbd:vms/team/store:id=u".parse().unwrap();
        assert_eq!((name.spec().as_str(), name.user.as_deref()), ("vms/team/store", Some("u")));
        for text in [
            "vms/store",
            "rbd:store",
            "rbd:/store",
            "rbd:vms/",
            "rbd:a/b/c/d",
            "rbd:a/b:x=1",
            "rbd:a/b@s",
            "rbd:a/b:id=u\nx",
        ] {
            assert!(text.parse::<RbdName>().unwrap_err().contains("expected rbd:POOL/IMAGE"), "{text}");
        }
    }
}
