//! NBD over TCP with TLS: QEMU's and libnbd's clients, with certificates and without.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use sha2::{Digest, Sha256};

use crate::daemon::{Daemon, Datastore};
use crate::programs::{tool, try_tool};
use crate::space::until;

/// An authority that signs certificates, in a folder of its own with the names that QEMU gives them.
struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

fn parameters(name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::new(Vec::new()).unwrap();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters
}

impl Authority {
    fn new(folder: PathBuf) -> Authority {
        std::fs::create_dir(&folder).unwrap();
        let mut own = parameters("authority");
        own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = own.self_signed(&key).unwrap();
        std::fs::write(folder.join("ca-cert.pem"), certificate.pem()).unwrap();
        let authority = Authority { folder, issuer: Issuer::new(own, key) };
        authority.sign("server", ExtendedKeyUsagePurpose::ServerAuth);
        authority.sign("client", ExtendedKeyUsagePurpose::ClientAuth);
        authority
    }

    /// Returns the fingerprint of the certificate, as openssl prints it.
    fn sign(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> String {
        let mut of = parameters(name);
        of.subject_alt_names = vec![SanType::IpAddress("127.0.0.1".parse().unwrap())];
        of.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let certificate = of.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.folder.join(format!("{name}-cert.pem")), certificate.pem()).unwrap();
        std::fs::write(self.folder.join(format!("{name}-key.pem")), key.serialize_pem()).unwrap();
        let digest = Sha256::digest(certificate.der());
        digest.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
    }

    /// Returns the URI for libnbd with the certificates.
    fn uri(&self, export: &str, port: u16) -> String {
        format!("nbds://127.0.0.1:{port}/{export}?tls-certificates={}", self.folder.display())
    }
}

fn start<'a>(datastore: &'a Datastore, folder: &Path, more: &[&str]) -> (Daemon<'a>, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let unix = format!("unix:{}", datastore.nbd_socket().display());
    let tcp = format!("127.0.0.1:{port}");
    let options = ["--nbd", &unix, "--nbd", &tcp, "--nbd-tls-dir", folder.to_str().unwrap()];
    (datastore.start_as(&[&options, more].concat()), port)
}

/// The VM of the second core is reached through a connection that goes there under TLS.
#[test]
fn disks_are_copied_over_tls_on_every_core() {
    let datastore = Datastore::new();
    let authority = Authority::new(datastore.beside("pki"));
    let (daemon, port) = start(&datastore, &authority.folder, &["--cores", "2"]);
    assert_eq!(datastore.json("status")["nbd"][1], format!("nbds://127.0.0.1:{port}/"));
    let content: Vec<u8> = (0..12_u64 << 20).map(|at| ((at * 2_654_435_761) >> 13) as u8).collect();
    let (from, back) = (datastore.beside("from.raw"), datastore.beside("back.raw"));
    std::fs::write(&from, &content).unwrap();
    for vm in ["web", "db"] {
        datastore.json(&format!("vm create {vm} --disk 12M"));
        let uri = authority.uri(&format!("{vm}/disk0"), port);
        tool("nbdcopy", &[from.to_str().unwrap(), &uri]);
        let _ = std::fs::remove_file(&back);
        tool("nbdcopy", &[&uri, back.to_str().unwrap()]);
        assert!(std::fs::read(&back).unwrap() == content, "{vm}");
        let socket = datastore.nbd_socket();
        let unix = format!("nbd+unix:///{vm}/disk0?socket={}", socket.display());
        tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", from.to_str().unwrap(), &unix]);
    }
    let cores = datastore.json("status")["cores"].clone();
    assert!(cores.as_array().unwrap().iter().all(|core| core["vms"] == 1), "{cores}");
    let info = tool("nbdinfo", &["--list", &authority.uri("", port)]);
    assert!(info.contains("web/disk0") && info.contains("with TLS"), "{info}");
    let credentials =
        format!("tls-creds-x509,id=tls,endpoint=client,dir={},verify-peer=yes", authority.folder.display());
    let image = format!(
        "driver=nbd,server.type=inet,server.host=127.0.0.1,server.port={port},export=web/disk0,tls-creds=tls"
    );
    tool("qemu-img", &["info", "--object", &credentials, "--image-opts", &image]);
    daemon.stop();
}

#[test]
fn without_a_certificate_of_the_authority_nothing_is_served_and_nothing_told() {
    let datastore = Datastore::new();
    let authority = Authority::new(datastore.beside("pki"));
    let stranger = Authority::new(datastore.beside("stranger"));
    let (daemon, port) = start(&datastore, &authority.folder, &[]);
    datastore.json("vm create web --disk 16M");
    let refused = |uri: &str| {
        for arguments in [&[uri][..], &["--list", uri]] {
            let output = try_tool("nbdinfo", arguments);
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(!output.status.success() && !said.contains("web"), "{arguments:?}: {said}");
        }
    };
    let clear = format!("nbd://127.0.0.1:{port}/web/disk0");
    refused(&clear);
    let said = String::from_utf8(try_tool("qemu-img", &["info", &clear]).stderr).unwrap();
    assert!(said.contains("TLS"), "{said}");
    // Of the stranger's certificates only the authority is replaced, so that the client trusts the server.
    std::fs::copy(authority.folder.join("ca-cert.pem"), stranger.folder.join("ca-cert.pem")).unwrap();
    refused(&stranger.uri("web/disk0", port));
    for file in ["client-cert.pem", "client-key.pem"] {
        std::fs::remove_file(stranger.folder.join(file)).unwrap();
    }
    refused(&stranger.uri("web/disk0", port));
    tool("nbdinfo", &[&authority.uri("web/disk0", port)]);
    daemon.stop();
}

/// The certificate of `shop` is listed for one VM, that of `backup` for all, and that of `unlisted` for none.
#[test]
fn a_certificate_reaches_the_vms_that_it_is_listed_for() {
    let datastore = Datastore::new();
    let authority = Authority::new(datastore.beside("pki"));
    let client = |name: &str| {
        let fingerprint = authority.sign(name, ExtendedKeyUsagePurpose::ClientAuth);
        let folder = datastore.beside(name);
        std::fs::create_dir(&folder).unwrap();
        for (from, to) in [
            ("ca-cert.pem".to_owned(), "ca-cert.pem"),
            (format!("{name}-cert.pem"), "client-cert.pem"),
            (format!("{name}-key.pem"), "client-key.pem"),
        ] {
            std::fs::copy(authority.folder.join(from), folder.join(to)).unwrap();
        }
        (folder, fingerprint)
    };
    let [shop, backup, unlisted] = ["shop", "backup", "unlisted"].map(client);
    let lines = format!("{} web\n{} *\n", shop.1, backup.1);
    std::fs::write(authority.folder.join("clients"), lines).unwrap();
    let (daemon, port) = start(&datastore, &authority.folder, &["--cores", "2"]);
    for vm in ["web", "db"] {
        datastore.json(&format!("vm create {vm} --disk 16M"));
    }
    let uri = |folder: &Path, export: &str| {
        format!("nbds://127.0.0.1:{port}/{export}?tls-certificates={}", folder.display())
    };
    for (folder, reaches) in
        [(&shop.0, [true, false]), (&backup.0, [true, true]), (&unlisted.0, [false, false])]
    {
        for (vm, is_reached) in ["web", "db"].into_iter().zip(reaches) {
            let output = try_tool("nbdinfo", &[&uri(folder, &format!("{vm}/disk0"))]);
            assert_eq!(output.status.success(), is_reached, "{vm} by {}", folder.display());
            let list = try_tool("nbdinfo", &["--list", &uri(folder, "")]);
            let listed = String::from_utf8_lossy(&list.stdout).contains(&format!("\"{vm}/disk0"));
            assert_eq!(listed, is_reached, "{vm} in the list of {}", folder.display());
        }
    }
    // The list is read again, for new connections; one that cannot be used, or is gone, changes nothing.
    let list = authority.folder.join("clients");
    let reaches = |client: &(PathBuf, String)| {
        try_tool("nbdinfo", &[&uri(&client.0, "web/disk0")]).status.success().then_some(())
    };
    let log = datastore.beside("daemon.log");
    let said = |words: &str| std::fs::read_to_string(&log).unwrap().contains(words);
    std::fs::write(&list, "no fingerprint\n").unwrap();
    until("the message about the list", || said("line 1: found").then_some(()));
    assert!(reaches(&shop).is_some() && reaches(&unlisted).is_none());
    std::fs::remove_file(&list).unwrap();
    until("the message about the missing list", || said("clients is gone").then_some(()));
    assert!(reaches(&shop).is_some() && reaches(&unlisted).is_none());
    std::fs::write(&list, format!("{} web\n", unlisted.1)).unwrap();
    until("the client of the new list", || reaches(&unlisted));
    assert!(reaches(&shop).is_none());
    daemon.stop();
}

#[test]
fn certificates_that_cannot_be_used_end_tcp_and_no_other_address() {
    let datastore = Datastore::new();
    let authority = Authority::new(datastore.beside("pki"));
    std::fs::write(authority.folder.join("server-key.pem"), "renewed wrongly").unwrap();
    let (daemon, port) = start(&datastore, &authority.folder, &[]);
    datastore.json("vm create web --disk 16M");
    tool("nbdinfo", &[&datastore.uri("web/disk0")]);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "never in clear text");
    daemon.stop();
    let log = std::fs::read_to_string(datastore.beside("daemon.log")).unwrap();
    assert!(log.contains("server-key.pem: ") && log.contains("expected a private key in PEM"), "{log}");
    let folder = authority.folder.to_str().unwrap();
    let mut alone = datastore.command(&["up", "--nbd", "192.0.2.1:10809", "--nbd-tls-dir", folder]);
    let output = alone.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
}
