#!/bin/sh
# root.sh ROOT PACKAGE...: makes the root file system of an image in ROOT from Debian packages and everything that they
# depend on, without a package manager and without maintainer scripts. The control data of each package is in
# /var/lib/dpkg/status.d, where scanners look for it. Runs as root in a Debian container with package lists.
set -eu
root=$1
shift

# Needed only by maintainer scripts, which do not run. dash depends on the last three.
unneeded='debconf perl-base openssl debianutils dpkg tar'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/archives/partial" "$root/usr/lib" "$root/usr/lib64" "$root/usr/bin" "$root/usr/sbin" \
  "$root/var/lib/dpkg/status.d" "$root/etc"
for name in lib lib64 bin sbin; do ln -s "usr/$name" "$root/$name"; done

# With an empty list of installed packages, apt-get downloads all dependencies.
: >"$work/status"
apt-get -qq --yes --no-install-recommends --download-only -o Dir::State::status="$work/status" \
  -o Dir::Cache::archives="$work/archives" install "$@"
for archive in "$work"/archives/*.deb; do
  package=$(dpkg-deb --field "$archive" Package)
  case " $unneeded " in *" $package "*) continue ;; esac
  dpkg-deb --fsys-tarfile "$archive" | tar --extract --directory "$root" --keep-directory-symlink \
    --exclude='./usr/share/man' --exclude='./usr/share/locale' --exclude='./usr/share/lintian' \
    --exclude='./usr/share/bug' --exclude='./usr/share/info' \
    --exclude='./usr/lib/*/gconv' --exclude='./usr/lib/*/audit' \
    --exclude='./usr/share/doc/*/changelog*' --exclude='./usr/share/doc/*/NEWS*' --exclude='./usr/share/doc/*/README*' \
    --exclude='./usr/share/doc/*/examples' --exclude='./usr/bin/tini-static'
  dpkg-deb --field "$archive" >"$root/var/lib/dpkg/status.d/$package"
done
ldconfig -r "$root"
# What the maintainer script of ca-certificates makes: one file with all certificates.
if [ -d "$root/usr/share/ca-certificates" ]; then
  mkdir -p "$root/etc/ssl/certs"
  find "$root/usr/share/ca-certificates" -name '*.crt' | LC_ALL=C sort | xargs cat \
    >"$root/etc/ssl/certs/ca-certificates.crt"
  rm -r "$root/usr/share/ca-certificates"
fi

cp /usr/lib/os-release "$root/usr/lib/os-release"
ln -sf ../usr/lib/os-release "$root/etc/os-release"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
printf '%s\n' 'root:x:0:0:root:/root:/bin/sh' 'trainyard:x:1000:1000:Trainyard:/var/lib/trainyard:/bin/sh' \
  >"$root/etc/passwd"
printf '%s\n' 'root:x:0:' 'trainyard:x:1000:' >"$root/etc/group"
install --directory --mode 1777 "$root/tmp"
install --directory --owner 1000 --group 1000 "$root/var/lib/trainyard" "$root/runs"
