"""Writes JSON schemas of the resources of the Prometheus operator, KEDA and KServe, from packages with their types.

    pip download --no-deps --only-binary :all: --ignore-requires-python --dest /tmp/types \\
        cloudcoil.models.prometheus-operator==0.93.1.1 cloudcoil.models.keda==2.20.2.1 kserve==0.21.0
    python tests/schemas/write.py /tmp/types

The packages were generated from the operators' own definitions. They are parsed, and neither installed nor imported.
Descriptions and the status are left out. KServe's package defines names and types, and no constraints on values. The
types of Kubernetes itself refer to the schemas of kubernetes-validate.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

HERE = Path(__file__).parent
KINDS = {
    "cloudcoil_models_prometheus_operator": {
        "monitoring.coreos.com/v1": {
            "PodMonitor": "PodMonitor",
            "PrometheusRule": "PrometheusRule",
            "ServiceMonitor": "ServiceMonitor",
        },
    },
    "cloudcoil_models_keda": {
        "keda.sh/v1alpha1": {"ScaledObject": "ScaledObject"},
    },
    "kserve": {
        "serving.kserve.io/v1alpha1": {"ServingRuntime": "V1alpha1ServingRuntime"},
        "serving.kserve.io/v1beta1": {"InferenceService": "V1beta1InferenceService"},
    },
}
CORE = "https://kubernetes.io/api/_definitions.json#/$defs/io.k8s"
META = {"$ref": f"{CORE}.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
PLAIN = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "bool": {"type": "boolean"},
    "ObjectMeta": META,
    "V1ObjectMeta": META,
    "ResourceQuantity": {"$ref": f"{CORE}.apimachinery.pkg.api.resource.Quantity"},
    "K8sIoApiAppsV1DeploymentStrategy": {"$ref": f"{CORE}.api.apps.v1.DeploymentStrategy"},
}
LIMITS = {"pattern": "pattern", "ge": "minimum", "min_length": "minLength"}


class Types:
    """The classes of a package. `named` converts a class, and the classes that it refers to, to schemas."""

    def __init__(self, package: Path) -> None:
        self.schemas: dict[str, Schema] = {}
        self._classes: dict[str, ast.ClassDef] = {}
        with zipfile.ZipFile(package) as files:
            for name in files.namelist():
                if re.search(r"/prometheus_operator/v1\.py$|/keda/v1alpha1\.py$|^kserve/models/", name):
                    statements = ast.parse(files.read(name)).body
                    self._classes |= {each.name: each for each in statements if isinstance(each, ast.ClassDef)}

    def named(self, name: str) -> Schema:
        if name in PLAIN:
            return PLAIN[name]
        if name in self._classes:
            if name not in self.schemas:
                self.schemas[name] = {}  # a class may refer to itself
                self.schemas[name] = self._class(self._classes[name])
            return {"$ref": f"#/$defs/{name}"}
        if re.match("V1[A-Z]", name):
            return {"$ref": f"{CORE}.api.core.v1.{name[2:]}"}
        return {}  # the package does not define this type

    def _class(self, of: ast.ClassDef) -> Schema:
        if any(isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "openapi_types" for each in of.body):
            return self._openapi(of)
        return self._pydantic(of)

    def _pydantic(self, of: ast.ClassDef) -> Schema:
        """Converts a pydantic model. Fields without a default are required."""
        fields: dict[str, Schema] = {}
        required: list[str] = []
        for each in of.body:
            if not isinstance(each, ast.AnnAssign) or ast.unparse(each.annotation).startswith("ClassVar"):
                continue
            alias = re.search(r"alias='(\w+)'", ast.unparse(each.annotation))
            name = alias[1] if alias else ast.unparse(each.target)
            if name == "root":
                return self._annotation(each.annotation)
            if name != "status":
                fields[name] = self._annotation(each.annotation)
                required += [name] * (each.value is None)
        return whole(fields, required)

    def _openapi(self, of: ast.ClassDef) -> Schema:
        """Converts a class of OpenAPI Generator. Its setters refuse None for required fields."""
        tables = {
            ast.unparse(each.targets[0]): ast.literal_eval(each.value)
            for each in of.body
            if isinstance(each, ast.Assign) and isinstance(each.value, ast.Dict)
        }
        names = tables["attribute_map"]
        fields = {
            names[each]: self._annotation(ast.parse(annotation, mode="eval").body)
            for each, annotation in tables["openapi_types"].items()
            if each != "status"
        }
        return whole(fields, [names[each] for each in re.findall("for `(.+)`, must not be `None`", ast.unparse(of))])

    def _annotation(self, annotation: ast.expr) -> Schema:
        match annotation:
            case ast.Name(id=name):
                return self.named(name)
            case ast.Subscript(value=ast.Name(id="list"), slice=item):
                return {"type": "array", "items": self._annotation(item)}
            case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[_, value])) | ast.Call(args=[_, value]):
                return {"type": "object", "additionalProperties": self._annotation(value)}
            case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=values)):
                return {"enum": [ast.literal_eval(each) for each in values]}
            case ast.Subscript(value=ast.Name(id="Literal"), slice=value):
                return {"enum": [ast.literal_eval(value)]}
            case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[of, ast.Call(keywords=more)])):
                return self._annotation(of) | limits({str(each.arg): ast.literal_eval(each.value) for each in more})
            case ast.BinOp(left=left, right=ast.Constant(value=None)):
                return self._annotation(left)
            case ast.BinOp(left=left, right=right):
                return {"anyOf": [self._annotation(left), self._annotation(right)]}
        raise ValueError(f"The annotation {ast.unparse(annotation)} is not supported.")


def limits(constraints: dict[str, Any]) -> Schema:
    found = {LIMITS[name]: value for name, value in constraints.items() if name in LIMITS}
    if "pattern" in found:
        found["pattern"] = found["pattern"].replace("^(?i)", "(?i)^")  # from Go's syntax to Python's
    return found


def whole(fields: dict[str, Schema], required: list[str]) -> Schema:
    """Returns the schema of an object that refuses other fields, as an API server with strict validation does."""
    schema = {"type": "object", "additionalProperties": False, "properties": dict(sorted(fields.items()))}
    return schema | ({"required": sorted(required)} if required else {})


def write(package: Path) -> None:
    name, version, *_ = package.name.split("-")
    types = Types(package)
    kinds = {
        f"{group}/{kind}": types.named(of) | {"required": ["apiVersion", "kind", "metadata", "spec"]}
        for group, all_ in KINDS[name].items()
        for kind, of in all_.items()
    }
    lines = [f"{json.dumps(each)}: {json.dumps(one)}" for each, one in sorted((types.schemas | kinds).items())]
    comment = json.dumps(f"Written by write.py from {name} {version}, whose licence is Apache-2.0.")
    text = f'{{"$comment": {comment}, "$defs": {{\n' + ",\n".join(lines) + "\n}}\n"
    (HERE / f"{name.removeprefix('cloudcoil_models_')}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    for each in sorted(Path(sys.argv[1]).glob("*.whl")):
        write(each)
