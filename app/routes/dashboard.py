"""The dashboard at `/`. Its files are open to everyone; what they show is asked from the API with the viewer's key."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.dashboard.assets import PAGE, Asset, assets
from app.errors import NotFoundError
from app.routes.pages import is_unchanged

router = APIRouter(include_in_schema=False)

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_SAFE = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_ASK_EACH_TIME = "no-cache"
_KEEP = "public, max-age=31536000, immutable"


@router.get("/")
async def page(request: Request) -> Response:
    """The dashboard."""
    return _answer(request, assets()[PAGE])


@router.get("/dashboard/{name}")
async def file(request: Request, name: str) -> Response:
    """A script, style sheet or picture of the dashboard."""
    asset = assets().get(name)
    if asset is None:
        raise NotFoundError("The dashboard has no such file.")
    return _answer(request, asset)


def _answer(request: Request, asset: Asset) -> Response:
    is_gzipped = _takes_gzip(request.headers.get("accept-encoding", ""))
    tag = asset.gzipped_tag if is_gzipped else asset.plain_tag
    headers = {
        **_SAFE,
        "ETag": tag,
        "Cache-Control": _KEEP if asset.is_immutable else _ASK_EACH_TIME,
        "Vary": "Accept-Encoding",
    }
    if is_unchanged(request.headers.get("if-none-match"), tag):
        return Response(status_code=304, headers=headers)
    if is_gzipped:
        headers["Content-Encoding"] = "gzip"
    return Response(asset.gzipped if is_gzipped else asset.plain, headers=headers, media_type=asset.media_type)


def _takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding header names gzip without refusing it. Source: RFC 9110, section 12.5.3."""
    for part in accepted.lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        if name == "gzip":
            return not any(each.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for each in parameters)
    return False
