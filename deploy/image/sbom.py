#!/usr/bin/env python3
"""Writes a bill of materials (CycloneDX 1.5, JSON) of an image: Trainyard, its Debian packages and its wheels.

    sbom.py --name trainyard-worker --version 0.1.0 --root ROOT [--wheels requirements/build.txt [--only REGEX]]

ROOT is the root file system, with the control data of its packages in /var/lib/dpkg/status.d. The same input gives the
same output: it contains no time, and the serial number is derived from the components.
"""

import argparse
import json
import pathlib
import re
import sys
import urllib.parse
import uuid


def quoted(text):
    return urllib.parse.quote(text, safe="")


def control_fields(text):
    """The fields of a control file of Debian, without those of more than one line."""
    return dict(re.findall(r"^([\w-]+): (.*)$", text, re.M))


def debian_packages(root):
    release = distribution(root)
    for path in sorted((root / "var/lib/dpkg/status.d").iterdir()):
        fields = control_fields(path.read_text())
        name, version = fields["Package"], fields["Version"]
        purl = f"pkg:deb/debian/{quoted(name)}@{quoted(version)}?arch={fields['Architecture']}&distro={release}"
        yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
               "supplier": {"name": fields["Maintainer"]},
               "properties": [{"name": "debian:source", "value": fields.get("Source", name)}]}


def distribution(root):
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', (root / "usr/lib/os-release").read_text(), re.M))
    return f"{fields['ID']}-{fields['VERSION_ID']}"


def wheels(path, only):
    for line in path.read_text().splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        name, separator, version = line.partition("==")
        if not separator:
            sys.exit(f"sbom: {path}: '{line}' is not pinned; expected NAME==VERSION")
        if not re.match(only, name):
            continue
        purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{quoted(version)}"
        yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def bill(name, version, components):
    subject = {"type": "container", "bom-ref": name, "name": name, "version": version,
               "licenses": [{"license": {"id": "Apache-2.0"}}]}
    identity = json.dumps([subject, components], sort_keys=True)
    return {"$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json", "bomFormat": "CycloneDX",
            "specVersion": "1.5", "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, identity)}", "version": 1,
            "metadata": {"component": subject}, "components": components,
            "dependencies": [{"ref": name, "dependsOn": [component["bom-ref"] for component in components]}]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="name of the image")
    parser.add_argument("--version", required=True, help="version of Trainyard")
    parser.add_argument("--root", required=True, type=pathlib.Path, help="root file system of the image")
    parser.add_argument("--wheels", type=pathlib.Path, help="list of pinned wheels in the image")
    parser.add_argument("--only", default="", metavar="REGEX", help="include only the wheels whose names match")
    arguments = parser.parse_args()
    if not (arguments.root / "var/lib/dpkg/status.d").is_dir():
        sys.exit(f"sbom: {arguments.root} has no /var/lib/dpkg/status.d; make it with deploy/image/root.sh")
    components = list(debian_packages(arguments.root))
    if arguments.wheels:
        components += wheels(arguments.wheels, arguments.only)
    print(json.dumps(bill(arguments.name, arguments.version, components), indent=1))


if __name__ == "__main__":
    main()
