//! `tenure tls`: a CA and certificates for a trial cluster.

use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Subcommand;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::failure::Failure;
use super::output;
use crate::access::AccessName;
use crate::config::{Config, NodeEntry};
use crate::tls::{client_uri, node_uri};

/// Validity of the CA, of the certificates, and the time before now at which it begins: clocks differ.
const CA_DAYS: i64 = 3650;
const CERTIFICATE_DAYS: i64 = 365;
const CLOCK_DIFFERENCE: Duration = Duration::hours(1);

#[derive(Subcommand)]
pub enum Command {
    /// Make a CA, and certificates for all nodes of a configuration file and for one client
    Init {
        /// New or empty folder for the files
        dir: PathBuf,
        /// Configuration file with the nodes
        #[arg(long, default_value = "cluster.toml", env = "TENURE_CONFIG")]
        config: PathBuf,
        /// One more host name or IP address of all nodes, for instance of a load balancer; repeatable
        #[arg(long = "host", value_name = "HOST", value_parser = host)]
        hosts: Vec<String>,
    },
    /// Make one more certificate with the CA of `tls init`, or replace one that expires
    Issue {
        /// Folder of `tls init`
        dir: PathBuf,
        /// Id of the node
        #[arg(long, value_name = "ID", conflicts_with = "client", required_unless_present = "client")]
        node: Option<u64>,
        /// Configuration file of the cluster
        #[arg(long, default_value = "cluster.toml", env = "TENURE_CONFIG")]
        config: PathBuf,
        /// Name of the client
        #[arg(long, value_name = "NAME", value_parser = client_name)]
        client: Option<String>,
        /// One more host name or IP address of the node; repeatable
        #[arg(long = "host", value_name = "HOST", value_parser = host, conflicts_with = "client")]
        hosts: Vec<String>,
    },
}

pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Init { dir, config, hosts } => init(&dir, &Config::load(&config)?, &hosts),
        Command::Issue { dir, node: Some(id), config, hosts, .. } => {
            let config = Config::load(&config)?;
            let entry = config.node(id).ok_or_else(|| Failure::Usage(format!("the file has no node {id}")))?;
            issue(&Ca::load(&dir)?, &dir, &node_name(id), node_params(&config, entry, &hosts)?, true)
        }
        Command::Issue { dir, client, config, .. } => {
            let name = client.expect("clap requires a node or a client");
            issue(&Ca::load(&dir)?, &dir, &name, client_params(&Config::load(&config)?, &name)?, true)
        }
    }
}

fn init(dir: &Path, config: &Config, hosts: &[String]) -> Result<(), Failure> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display())).map_err(Failure::Other)?;
    // Nothing is written unless all files are: a new CA beside older certificates signs nothing that nodes accept.
    let names = ["ca".to_owned(), "client".to_owned()].into_iter();
    for name in names.chain(config.nodes.iter().map(|entry| node_name(entry.id))) {
        ["key", "pem"].iter().try_for_each(|kind| refuse_existing(&dir.join(format!("{name}.{kind}"))))?;
    }
    let ca = Ca::create(dir, &config.cluster)?;
    for entry in &config.nodes {
        issue(&ca, dir, &node_name(entry.id), node_params(config, entry, hosts)?, false)?;
    }
    issue(&ca, dir, "client", client_params(config, "client")?, false)?;
    let dir = dir.display();
    output::print(&format!(
        "Copy {dir}/ca.pem and its own node-ID.pem and node-ID.key to each machine. Keep {dir}/ca.key offline.\n\
         Add this to the configuration file, with paths relative to its folder:\n\n\
         [tls]\n\
         ca   = \"{dir}/ca.pem\"\n\
         cert = \"{dir}/node-{{node}}.pem\"\n\
         key  = \"{dir}/node-{{node}}.key\"\n\
         client_cert = \"require\"\n\n\
         Clients then use https endpoints with these variables:\n\n\
         export TENURE_CA={dir}/ca.pem TENURE_CERT={dir}/client.pem TENURE_KEY={dir}/client.key\n"
    ))
}

/// The CA, which signs certificates.
struct Ca(Issuer<'static, KeyPair>);

impl Ca {
    fn create(dir: &Path, cluster: &str) -> Result<Ca, Failure> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("CA of cluster {cluster}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        set_validity(&mut params, CA_DAYS);
        let key = new_key()?;
        let certificate = params.self_signed(&key).map_err(cannot_make)?;
        write(&dir.join("ca.key"), &key.serialize_pem(), false, true)?;
        let written = write(&dir.join("ca.pem"), &certificate.pem(), false, false);
        // Without its certificate, the key would only keep a second attempt from its work.
        written.inspect_err(|_| _ = std::fs::remove_file(dir.join("ca.key")))?;
        Ok(Ca(Issuer::new(params, key)))
    }

    fn load(dir: &Path) -> Result<Ca, Failure> {
        let read = |name: &str| {
            let path = dir.join(name);
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()));
            text.map_err(Failure::Other)
        };
        let (key, certificate) = (read("ca.key")?, read("ca.pem")?);
        let invalid = |error: rcgen::Error| Failure::Other(anyhow!("the CA in {} is invalid: {error}", dir.display()));
        let key = KeyPair::from_pem(&key).map_err(invalid)?;
        let public = CertificateDer::from_pem_slice(certificate.as_bytes()).ok();
        let public = public.as_ref().and_then(|der| X509Certificate::from_der(der).ok());
        if public.is_some_and(|(_, certificate)| certificate.public_key().raw != key.subject_public_key_info()) {
            let why = anyhow!("{0}/ca.key is not the key of {0}/ca.pem", dir.display());
            return Err(Failure::Other(why));
        }
        Ok(Ca(Issuer::from_ca_cert_pem(&certificate, key).map_err(invalid)?))
    }
}

/// Makes a key and its certificate, in two files with this name.
fn issue(ca: &Ca, dir: &Path, name: &str, mut params: CertificateParams, replace: bool) -> Result<(), Failure> {
    set_validity(&mut params, CERTIFICATE_DAYS);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // RFC 5280 requires it. Some verifiers refuse a certificate without it, for example Python from 3.13 on.
    params.use_authority_key_identifier_extension = true;
    let key = new_key()?;
    let certificate = params.signed_by(&key, &ca.0).map_err(cannot_make)?;
    let path = dir.join(format!("{name}.pem"));
    // An error must not leave a new key beside an older certificate.
    let key = NewFile::write(&dir.join(format!("{name}.key")), &key.serialize_pem(), replace, true)?;
    let certificate = NewFile::write(&path, &certificate.pem(), replace, false)?;
    key.rename()?;
    certificate.rename()?;
    message!("{}: valid for {CERTIFICATE_DAYS} days", path.display());
    Ok(())
}

fn node_name(id: u64) -> String {
    format!("node-{id}")
}

/// The names of a node: the hosts of its addresses and of the option, and the URI that the other nodes check.
fn node_params(config: &Config, entry: &NodeEntry, hosts: &[String]) -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, format!("node {} of {}", entry.id, config.cluster));
    let mut names = Vec::new();
    let addresses = [&entry.http, &entry.peer];
    let of_addresses = addresses.map(|address| address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host));
    for host in of_addresses.into_iter().chain(hosts.iter().map(String::as_str)) {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        names.push(match host.parse::<IpAddr>() {
            Ok(ip) => SanType::IpAddress(ip),
            Err(_) => SanType::DnsName(host.try_into().map_err(cannot_make)?),
        });
    }
    names.dedup();
    names.push(SanType::URI(node_uri(&config.cluster, entry.id).try_into().map_err(cannot_make)?));
    params.subject_alt_names = names;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    Ok(params)
}

/// The names of a client: its common name, and the URI that names a principal of access control.
fn client_params(config: &Config, name: &str) -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    let uri = client_uri(&config.cluster, name).try_into().map_err(cannot_make)?;
    params.subject_alt_names = vec![SanType::URI(uri)];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok(params)
}

/// Parses the name of a client, which is also the name of its files and of its principal.
fn client_name(text: &str) -> Result<String, String> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_used = text == "ca" || text.starts_with("node-");
    if AccessName::new(text).is_err() || !text.chars().all(is_valid) || is_used {
        let expected = "expected 1 to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit";
        return Err(format!("{expected}, and neither `ca` nor `node-…`"));
    }
    Ok(text.to_owned())
}

/// Parses one more host of a node: a name, or an IP address without brackets.
fn host(text: &str) -> Result<String, String> {
    ServerName::try_from(text).map(|_| text.to_owned()).map_err(|_| "expected a host name or an IP address".to_owned())
}

fn set_validity(params: &mut CertificateParams, days: i64) {
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - CLOCK_DIFFERENCE, now + Duration::days(days));
}

fn new_key() -> Result<KeyPair, Failure> {
    KeyPair::generate().map_err(cannot_make)
}

fn cannot_make(error: rcgen::Error) -> Failure {
    Failure::Other(anyhow!("cannot make a certificate: {error}"))
}

fn refuse_existing(path: &Path) -> Result<(), Failure> {
    if !path.exists() {
        return Ok(());
    }
    let message = format!("{} exists: choose another folder, or use `tenure tls issue`", path.display());
    Err(Failure::Usage(message))
}

/// Writes a file. Only the owner can read a key. A reader never sees a part of the file.
fn write(path: &Path, text: &str, replace: bool, is_secret: bool) -> Result<(), Failure> {
    NewFile::write(path, text, replace, is_secret)?.rename()
}

/// A complete file under a temporary name. Dropping it removes it.
struct NewFile {
    path: PathBuf,
    temporary: PathBuf,
}

impl NewFile {
    fn write(path: &Path, text: &str, replace: bool, is_secret: bool) -> Result<NewFile, Failure> {
        if path.is_dir() {
            return Err(Failure::Other(anyhow!("cannot write {}: it is a folder", path.display())));
        }
        if !replace {
            refuse_existing(path)?;
        }
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".new");
        let new = NewFile { path: path.to_owned(), temporary: temporary.into() };
        // An earlier command may have been killed.
        let _ = std::fs::remove_file(&new.temporary);
        let write = || {
            let mode = if is_secret { 0o600 } else { 0o644 };
            let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new.temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        new.with_context(write())?;
        Ok(new)
    }

    fn rename(self) -> Result<(), Failure> {
        self.with_context(std::fs::rename(&self.temporary, &self.path))
    }

    fn with_context(&self, written: std::io::Result<()>) -> Result<(), Failure> {
        written.with_context(|| format!("cannot write {}", self.path.display())).map_err(Failure::Other)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use x509_parser::extensions::{GeneralName, ParsedExtension};

    use super::*;

    fn config(folder: &Path) -> Config {
        let text = "cluster = \"a\"\n[[node]]\nid = 1\nhttp = \"localhost:7101\"\npeer = \"127.0.0.1:7201\"\ndata = \"data\"\n";
        let file = folder.join("cluster.toml");
        std::fs::write(&file, text).expect("writable");
        Config::load(&file).expect("valid")
    }

    /// As after the advice to keep the key offline.
    #[test]
    fn key_of_another_ca_signs_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let (config, [ca, other]) = (config(folder.path()), ["ca", "other"].map(|name| folder.path().join(name)));
        init(&ca, &config, &[]).expect("a new folder");
        init(&other, &config, &[]).expect("a new folder");
        Ca::load(&ca).map(drop).expect("its own key");
        let offline = folder.path().join("offline.key");
        std::fs::rename(ca.join("ca.key"), &offline).expect("moved");
        let again = init(&ca, &config, &[]);
        assert!(matches!(&again, Err(Failure::Usage(why)) if why.contains("ca.pem exists")), "{again:?}");
        assert!(!ca.join("ca.key").exists(), "a key without its certificate");
        std::fs::copy(other.join("ca.key"), ca.join("ca.key")).expect("copied");
        let Err(Failure::Other(why)) = Ca::load(&ca).map(drop) else { panic!("the key belongs to another CA") };
        assert!(why.to_string().ends_with("ca.pem"), "{why}");
    }

    #[test]
    fn certificates_keep_a_second_ca_from_their_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let (config, dir) = (config(folder.path()), folder.path().join("tls"));
        init(&dir, &config, &[]).expect("a new folder");
        let of_ca = ["ca.key", "ca.pem"].map(|name| dir.join(name));
        for name in &of_ca {
            std::fs::remove_file(name).expect("moved to another machine");
        }
        let again = init(&dir, &config, &[]);
        assert!(matches!(&again, Err(Failure::Usage(why)) if why.contains(" exists: ")), "{again:?}");
        assert!(of_ca.iter().all(|file| !file.exists()), "a new CA");
    }

    /// A certificate of `tls init`.
    fn read(dir: &Path, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(dir.join(name)).expect("a certificate")
    }

    fn parse<'a>(certificate: &'a CertificateDer<'_>) -> X509Certificate<'a> {
        X509Certificate::from_der(certificate).expect("valid").1
    }

    #[test]
    fn ca_is_valid_for_3650_days_and_certificates_for_365() {
        let folder = tempfile::tempdir().expect("a folder");
        let now = OffsetDateTime::now_utc().unix_timestamp();
        init(folder.path(), &config(folder.path()), &[]).expect("a new folder");
        for (name, days) in [("ca.pem", 3_650), ("node-1.pem", 365), ("client.pem", 365)] {
            let certificate = read(folder.path(), name);
            let validity = parse(&certificate).validity().clone();
            let (begin, end) = (validity.not_before.timestamp(), validity.not_after.timestamp());
            assert!(begin <= now - 3_000, "{name}: clocks differ, and it begins at {begin}, {now} now");
            let over = end - (now + days * 86_400);
            assert!((-1..=300).contains(&over), "{name}: {days} days and {over} s");
        }
    }

    #[test]
    fn certificates_name_the_key_of_their_ca() {
        let folder = tempfile::tempdir().expect("a folder");
        init(folder.path(), &config(folder.path()), &[]).expect("a new folder");
        let ca = read(folder.path(), "ca.pem");
        let own = parse(&ca).extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(key) => Some(key.0.to_owned()),
            _ => None,
        });
        assert!(own.is_some(), "the CA names its key");
        for name in ["node-1.pem", "client.pem"] {
            let certificate = read(folder.path(), name);
            let key_of_ca = parse(&certificate).extensions().iter().find_map(|it| match it.parsed_extension() {
                ParsedExtension::AuthorityKeyIdentifier(ca) => Some(ca.key_identifier.as_ref()?.0.to_owned()),
                _ => None,
            });
            assert_eq!(key_of_ca, own, "{name}");
        }
    }

    #[test]
    fn issued_certificate_of_a_node_has_the_hosts_of_the_option() {
        let folder = tempfile::tempdir().expect("a folder");
        init(folder.path(), &config(folder.path()), &[]).expect("a new folder");
        let (node, client) = (Some(1), None);
        let (dir, config) = (folder.path().to_owned(), folder.path().join("cluster.toml"));
        let hosts = vec!["leases.example.net".to_owned()];
        run(Command::Issue { dir, node, config, client, hosts }).map_err(|why| why.message()).expect("issued");
        let certificate = read(folder.path(), "node-1.pem");
        let certificate = parse(&certificate);
        let names = certificate.subject_alternative_name().expect("valid").expect("names").value;
        for host in ["localhost", "leases.example.net"] {
            assert!(names.general_names.contains(&GeneralName::DNSName(host)), "{host}: {:?}", names.general_names);
        }
    }

    #[test]
    fn client_has_the_name_of_a_principal_and_of_no_other_certificate() {
        let longest = "a".repeat(64);
        for good in ["a", "7", "backup-job", "Nightly.2_b", "cab", "node", &longest] {
            assert_eq!(client_name(good).as_deref(), Ok(good));
            assert!(AccessName::new(good).is_ok(), "{good}");
        }
        let too_long = "a".repeat(65);
        for bad in ["", "ca", "node-1", "node-x", ".a", "_ci", "-ci", "a/b", "..", "a b", "ci@host", &too_long] {
            assert!(client_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn certificate_of_a_node_has_the_hosts_of_the_option() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = config(folder.path());
        let hosts = ["leases.example.net".to_owned(), "2001:db8::1".to_owned()];
        let names = node_params(&config, &config.nodes[0], &hosts).expect("valid names").subject_alt_names;
        let dns = |name: &str| SanType::DnsName(name.try_into().expect("ASCII"));
        let ip = |ip: &str| SanType::IpAddress(ip.parse().expect("valid"));
        let expected = [dns("localhost"), ip("127.0.0.1"), dns("leases.example.net"), ip("2001:db8::1")];
        assert_eq!(names[..4], expected);
        assert_eq!(names.len(), 5, "and the URI: {names:?}");
    }

    #[test]
    fn file_of_an_interrupted_command_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let (key, temporary) = (folder.path().join("node-1.key"), folder.path().join("node-1.key.new"));
        std::fs::write(&temporary, "a part").expect("writable");
        assert!(write(&key, "a key", true, true).is_ok());
        assert_eq!((std::fs::read_to_string(&key).expect("written"), temporary.exists()), ("a key".to_owned(), false));
        std::fs::create_dir(folder.path().join("ca.pem")).expect("writable");
        assert!(write(&folder.path().join("ca.pem"), "text", true, false).is_err(), "it is a folder");
        let (file, other) = (folder.path().join("file"), folder.path().join("other"));
        drop(NewFile::write(&file, "text", true, false).expect("writable"));
        // The name of the file becomes that of a folder, so the last step fails.
        let new = NewFile::write(&other, "text", true, false).expect("writable");
        std::fs::create_dir(&other).expect("writable");
        assert!(new.rename().is_err());
        for left in ["file", "file.new", "other.new", "ca.pem.new"] {
            assert!(!folder.path().join(left).exists(), "a failed command leaves no {left}");
        }
    }

    /// The name of the certificate is that of a folder.
    #[test]
    fn certificate_that_cannot_be_written_leaves_the_key_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let (config, dir) = (config(folder.path()), folder.path());
        init(dir, &config, &[]).expect("a new folder");
        let before = std::fs::read_to_string(dir.join("node-1.key")).expect("written");
        std::fs::remove_file(dir.join("node-1.pem")).expect("written");
        std::fs::create_dir(dir.join("node-1.pem")).expect("writable");
        let ca = Ca::load(dir).map_err(|why| why.message()).expect("its own key");
        let params = || node_params(&config, &config.nodes[0], &[]).map_err(|why| why.message()).expect("valid");
        assert!(issue(&ca, dir, "node-1", params(), true).is_err());
        assert_eq!(std::fs::read_to_string(dir.join("node-1.key")).expect("readable"), before);
        std::fs::remove_dir(dir.join("node-1.pem")).expect("empty");
        issue(&ca, dir, "node-1", params(), true).map_err(|why| why.message()).expect("issued");
        assert_ne!(std::fs::read_to_string(dir.join("node-1.key")).expect("readable"), before);
    }

    #[test]
    fn host_is_a_name_or_an_address() {
        for good in ["leases.example.net", "10.0.0.1", "2001:db8::1"] {
            assert_eq!(host(good).as_deref(), Ok(good));
        }
        for bad in ["", "two words", "[2001:db8::1]", "10.0.0.1:7101", "https://a"] {
            assert!(host(bad).is_err(), "{bad}");
        }
    }
}
