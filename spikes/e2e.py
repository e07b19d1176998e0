import sys,time,numpy as np; sys.path.insert(0,'spikes')
from data2 import load
import tensorveil as tv
from tensorveil.data.observations import Observations
from tensorveil.privacy.bounds import Bounds
name,eps,unit=sys.argv[1],float(sys.argv[2]),sys.argv[3]; o=dict(a.split('=') for a in sys.argv[4:])
co,v,ct,vt,shape,b=load(name,bool(int(o.get('val',1))))
if 'wide' in o: b=(b[0],b[0]+10*(b[1]-b[0]))
obs=Observations(co,v,shape); t=time.time()
kw={}
if 'mech' in o: kw['mechanism']=o['mech']
rel=tv.complete(obs,o.get('model','cp'),Bounds(*b),unit,eps,float(o.get('delta',0)),seed=int(o.get('seed',1)),expected_count=len(v) if unit!='value' and np.isfinite(eps) else None,**kw)
p=rel.model.predict(ct); tt=time.time()-t
rm=lambda x:float(np.sqrt(((x-vt)**2).mean()))
extra=''
if rel.model.draws is not None:
    lo,hi=rel.model.interval(ct[:3000]); w=1e-6*(b[1]-b[0]); c=(vt[:3000]>=lo-w)&(vt[:3000]<=hi+w); q=np.argsort(p[:3000]); extra='cover %.3f %s mixing %s'%(c.mean(),[round(float(c[x].mean()),2) for x in np.array_split(q,10)],rel.model.draws.mixing.round(2))
print(name,eps,unit,sys.argv[4:],'RMSE %.4f mean %.4f ratio %.3f'%(rm(p),rm(v.mean()),rm(p)/rm(v.mean())),extra,'%.1fs'%tt,flush=True)
