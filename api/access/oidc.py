"""Logging in at an OpenID Connect provider: authorization code with PKCE, state and nonce, by OpenID Connect Core 1.0.

A user is known by the provider's subject, not by a name that the provider lets people choose.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote

import httpx

from scamp_service.access.model import Role
from scamp_service.errors import Refused
from scamp_service.settings import OidcSettings

STATE_COOKIE = "scamp_login"
STATE_SECONDS = 600
LEEWAY_SECONDS = 60
TIMEOUT_SECONDS = 10.0
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures with the provider's key pair, not with a secret that others share."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody whom the provider has vouched for."""

    subject: str  # issuer and sub: of one person for ever
    name: str
    email: str
    groups: tuple[str, ...]


class Provider:
    """The provider of these settings. Its methods ask it over HTTP, and raise ``Refused`` if that fails."""

    def __init__(self, settings: OidcSettings) -> None:
        self.settings = settings

    @cached_property
    def _metadata(self) -> Mapping[str, Any]:
        address = self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration"
        metadata: Mapping[str, Any] = _json(httpx.get(address, timeout=TIMEOUT_SECONDS))
        if metadata["issuer"].rstrip("/") != self.settings.issuer.rstrip("/"):
            raise Refused(f"the provider calls itself {metadata['issuer']}, and SCAMP_OIDC {self.settings.issuer}")
        return metadata

    def begin(self, redirect_uri: str, target: str) -> tuple[str, str]:
        """(address at the provider to go to, value of the cookie ``STATE_COOKIE``)."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        with self._client(redirect_uri) as client, _explained():
            address, _ = client.create_authorization_url(
                self._metadata["authorization_endpoint"], state=state, nonce=nonce, code_verifier=verifier
            )
        kept = {"state": state, "nonce": nonce, "verifier": verifier, "target": target}
        return address, quote(json.dumps(kept), safe="")

    def finish(self, redirect_uri: str, cookie: str, query: Mapping[str, str]) -> tuple[Identity, str]:
        """Whoever comes back from the provider with this ``query``, and the path to go on to."""
        with _explained():
            try:
                kept = json.loads(unquote(cookie))
                is_same = secrets.compare_digest(query.get("state", "").encode(), kept["state"].encode())
            except (ValueError, KeyError, TypeError, AttributeError):
                is_same = False
            if not is_same:
                raise Refused("this login was not begun in this browser, or too long ago; begin again")
            if "code" not in query:
                raise Refused(query.get("error_description") or query.get("error") or "the provider gave no code")
            with self._client(redirect_uri) as client:
                token = client.fetch_token(
                    self._metadata["token_endpoint"], code=query["code"], code_verifier=kept["verifier"]
                )
                claims = {**self._verified(token["id_token"], kept["nonce"])}
                if "userinfo_endpoint" in self._metadata:
                    info = _json(client.get(self._metadata["userinfo_endpoint"]))
                    if info.get("sub") != claims["sub"]:
                        raise Refused("the provider has answered about somebody else")
                    claims = {**info, **claims}
            return self._identity(claims), str(kept["target"])

    def rights(self, groups: tuple[str, ...]) -> tuple[dict[str, Role | None], bool | None]:
        """Roles in the projects that SCAMP_OIDC gives to groups (None: none), and whether members of these groups are
        admins of the service (None: no group is)."""
        roles: dict[str, Role | None] = {}
        for group, rights in self.settings.groups.items():
            for project, role in ({} if rights == "admin" else rights).items():
                before = roles.setdefault(project, None)
                if group in groups and (before is None or role.includes(before)):
                    roles[project] = role
        of_admins = [group for group, rights in self.settings.groups.items() if rights == "admin"]
        return roles, any(group in groups for group in of_admins) if of_admins else None

    def _client(self, redirect_uri: str) -> Any:
        from authlib.integrations.httpx_client import OAuth2Client  # imported here: most services have no provider

        return OAuth2Client(
            client_id=self.settings.client_id,
            client_secret=self.settings.client_secret or None,
            scope=self.settings.scopes,
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            timeout=TIMEOUT_SECONDS,
        )

    def _verified(self, id_token: str, nonce: str) -> Mapping[str, Any]:
        from joserfc import jwt
        from joserfc.jwk import KeySet

        keys = KeySet.import_key_set(_json(httpx.get(self._metadata["jwks_uri"], timeout=TIMEOUT_SECONDS)))
        claims: dict[str, Any] = jwt.decode(id_token, keys, algorithms=ALGORITHMS).claims
        expected = {
            "iss": {"essential": True, "value": self._metadata["issuer"]},
            "aud": {"essential": True, "value": self.settings.client_id},
            "nonce": {"essential": True, "value": nonce},
        }
        needed: Any = {**expected, "exp": {"essential": True}, "sub": {"essential": True}}
        jwt.JWTClaimsRegistry(leeway=LEEWAY_SECONDS, **needed).validate(claims)
        return claims

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        name = claims.get(self.settings.name_claim)
        if not isinstance(name, str) or not name:
            raise Refused(f"the provider says no {self.settings.name_claim}, by which SCAMP_OIDC names users")
        groups = claims.get(self.settings.groups_claim, ())
        subject = f"{self._metadata['issuer']} {claims['sub']}"
        email = claims.get("email") if claims.get("email_verified", True) else ""
        return Identity(subject, name, str(email or ""), tuple(map(str, groups if isinstance(groups, list) else ())))


class _explained:
    """Turns errors of the provider into ``Refused``."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        from authlib.integrations.base_client import OAuthError
        from joserfc.errors import JoseError

        if isinstance(error, httpx.HTTPError | OAuthError | JoseError | KeyError | ValueError):
            raise Refused(f"the provider did not answer as OpenID Connect asks for: {error!r}"[:500]) from error


def _json(answer: httpx.Response) -> Any:
    answer.raise_for_status()
    return answer.json()
